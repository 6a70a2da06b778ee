//! The demo in the terminal: the gateways in real time, drawn ten times a second.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::TryStreamExt;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use sluicegate::dynamo::DynamoTable;
use sluicegate::dynamo::Reader;
use sluicegate::leasing::Leased;
use sluicegate::types::EpochMillis;
use sluicegate::{Clock, CompositeStore, LeaseSettings, Limiter, SystemClock};
use sluicegate_core::{LimitName, Resource, UsageWindow, WindowKind, WindowSpan};
use sluicegate_local::{LocalLoop, LoopOptions, Storage, client};
use sluicegate_processor::Settings;
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use super::board::{Board, Units, Used};
use super::gateways::Gateways;
use super::patient::patient;
use super::traffic::{self, BUDGET, MODEL, REQUESTS, TENANTS, TOKENS};
use super::view;
use crate::error::{CliError, say};
use crate::feed::interrupted;

const TABLE: &str = "sluicegate-demo";
/// Millionths of a dollar.
const MICRO_PER_CENT: i64 = 10_000;
const FRAME: Duration = Duration::from_millis(100);
/// The time between two reads of balances and windows.
const LOOK: Duration = Duration::from_millis(250);
/// The time in which leases must be given back at the end.
const SETTLING_TIME: Duration = Duration::from_secs(2);
/// The longest delay of a key press when nothing else happens.
const KEY_POLL: Duration = Duration::from_millis(200);

/// The gateways, and access to their figures.
struct Scene {
    gateways: Gateways,
    limiter: Limiter,
    reader: Reader,
    metering_units: Arc<Mutex<f64>>,
    board: Board,
    start_ms: i64,
}

pub(super) async fn run(
    seconds: Option<u32>,
    seed: u64,
    leased: bool,
) -> Result<ExitCode, CliError> {
    if !std::io::stdout().is_terminal() {
        return Err(CliError::BadInput(
            "the demo draws on a terminal and there is none; try `sluicegate demo --headless`"
                .to_owned(),
        ));
    }
    let metering_units = Arc::new(Mutex::new(0.0));
    let local = start(&metering_units).await?;
    let client = client::dynamodb(&local.endpoint_url());
    let (stop, stopped) = oneshot::channel::<()>();
    let metering = tokio::spawn(local.run_until(async {
        let _ = stopped.await;
    }));

    let store = CompositeStore::with_table(DynamoTable::new(&client, TABLE));
    let builder = Limiter::builder(store);
    let limiter = patient(if leased { builder.leasing(LeaseSettings::default()) } else { builder });
    let reader = Reader::new(client, TABLE);
    let board = show(limiter.clone(), reader, metering_units, seed, seconds).await?;
    limiter.shutdown(SETTLING_TIME).await;
    drop(stop);
    metering.await.map_err(CliError::bad)??;
    let (requests, elapsed_s) = (board.requests, board.elapsed_s);
    say(&format!(
        "{elapsed_s} s: {} requests admitted, {} refused",
        requests.admitted, requests.refused
    ));
    Ok(ExitCode::SUCCESS)
}

/// Plays until the user ends it; returns the last board.
async fn show(
    limiter: Limiter,
    reader: Reader,
    metering_units: Arc<Mutex<f64>>,
    seed: u64,
    seconds: Option<u32>,
) -> Result<Board, CliError> {
    let start_ms = SystemClock.now().get();
    let gateways = Gateways::new(limiter.clone(), seed, start_ms);
    let board = Board::default();
    let mut scene = Scene { gateways, limiter, reader, metering_units, board, start_ms };
    let mut terminal = ratatui::try_init()?;
    let played = scene.play(&mut terminal, seconds).await;
    ratatui::restore();
    played?;
    Ok(scene.board)
}

/// Starts the engine and its metering, which adds up its write units.
async fn start(units: &Arc<Mutex<f64>>) -> Result<LocalLoop, CliError> {
    let mut settings = Settings::new(TABLE);
    settings.window_kinds = "minute,hour".parse().map_err(CliError::bad)?;
    let units = units.clone();
    let parts = LoopOptions {
        port: 0,
        storage: Storage::Temporary,
        settings,
        observer: Some(Arc::new(move |outcome| {
            *units.lock().unwrap_or_else(PoisonError::into_inner) += outcome.report.write_units;
        })),
    };
    Ok(LocalLoop::start(parts).await?)
}

impl Scene {
    /// Plays until a key, a signal, or the end of the time.
    async fn play(
        &mut self,
        terminal: &mut DefaultTerminal,
        seconds: Option<u32>,
    ) -> Result<(), CliError> {
        let mut quit = quit_key();
        let mut end = std::pin::pin!(interrupted()?);
        let (mut frames, mut looks) = (tokio::time::interval(FRAME), tokio::time::interval(LOOK));
        frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due_ms = self.gateways.next_ms() - SystemClock.now().get();
            let due = Duration::from_millis(u64::try_from(due_ms).unwrap_or(0));
            tokio::select! {
                _ = quit.recv() => return Ok(()),
                () = &mut end => return Ok(()),
                () = tokio::time::sleep(due) => self.gateways.step().await?,
                _ = looks.tick() => self.look().await?,
                _ = frames.tick() => {
                    let elapsed_ms = SystemClock.now().get() - self.start_ms;
                    let elapsed_s = u64::try_from(elapsed_ms / 1_000).unwrap_or(0);
                    let writes = self.limiter.leased().map(Leased::writes);
                    self.board.tick(elapsed_s, &self.gateways.books, writes);
                    terminal.draw(|frame| view::draw(frame, &self.board))?;
                    if seconds.is_some_and(|seconds| elapsed_s >= u64::from(seconds)) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Updates balances, windows and units on the board.
    async fn look(&mut self) -> Result<(), CliError> {
        for tenant in 0..TENANTS {
            let peek = self.limiter.peek(traffic::name(tenant), MODEL).no_cascade();
            let figures = &mut self.board.tenants[tenant];
            for status in peek.limits(traffic::limits(tenant)).await? {
                let left = status.available.get() / 1_000;
                match status.limit.as_str() {
                    REQUESTS => figures.requests_left = left,
                    BUDGET => figures.cents_left = left / MICRO_PER_CENT,
                    _ => figures.tokens_left = left,
                }
            }
            (figures.minute, figures.hour) = Default::default();
        }
        let now = SystemClock.now();
        self.board.minute = self.windows(WindowKind::Minute, now).await?;
        self.board.hour = self.windows(WindowKind::Hour, now).await?;
        let metering = *self.metering_units.lock().unwrap_or_else(PoisonError::into_inner);
        let Gateways { acquire_units, adjust_units, .. } = self.gateways;
        self.board.units = Units { acquires: acquire_units, adjustments: adjust_units, metering };
        Ok(())
    }

    /// Reads the current windows of one kind; returns their start, if there are any.
    async fn windows(&mut self, kind: WindowKind, now: EpochMillis) -> Result<String, CliError> {
        let window = kind.containing(now);
        let at = |s: i64| EpochMillis::new(s * 1_000).map_err(CliError::bad);
        let span = WindowSpan { kind, starts: at(window.start_s())?..at(window.end_s())? };
        let resource = Resource::new(MODEL).map_err(CliError::bad)?;
        let found: Vec<_> = self.reader.usage_of_resource(&resource, &span).try_collect().await?;
        for usage in &found {
            let named = |tenant: &usize| traffic::name(*tenant) == usage.entity.to_string();
            let Some(tenant) = (0..TENANTS).find(named) else { continue };
            let figures = &mut self.board.tenants[tenant];
            let of_kind =
                if kind == WindowKind::Minute { &mut figures.minute } else { &mut figures.hour };
            *of_kind = used(usage);
        }
        // `2026-01-28T14:03:00Z`
        let start = window.start_text();
        let clock = start.get(11..16).filter(|_| !found.is_empty());
        Ok(clock.unwrap_or_default().to_owned())
    }
}

fn used(usage: &UsageWindow) -> Used {
    let tokens = |limit: &str| {
        let milli = LimitName::new(limit).ok().and_then(|limit| usage.consumed_milli.get(&limit));
        milli.copied().unwrap_or(0) / 1_000
    };
    let cents = tokens(BUDGET) / i128::from(MICRO_PER_CENT);
    Used { requests: tokens(REQUESTS), tokens: tokens(TOKENS), cents }
}

/// Returns a channel that receives a message when a key is pressed that quits.
fn quit_key() -> mpsc::UnboundedReceiver<()> {
    let (pressed, quit) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while !pressed.is_closed() {
            if !event::poll(KEY_POLL).unwrap_or(false) {
                continue;
            }
            let Ok(Event::Key(key)) = event::read() else { continue };
            let interrupt = key.modifiers.contains(KeyModifiers::CONTROL);
            if matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
                || (interrupt && key.code == KeyCode::Char('c'))
            {
                let _ = pressed.send(());
            }
        }
    });
    quit
}
