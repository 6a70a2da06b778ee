//! The demo without a terminal and without waiting: a simulated clock, a summary as JSON.
//!
//! The same seed makes the same decisions on every machine: the only clock that the limiter and the
//! engine know is moved from event to event. With leases this does not hold: they are renewed
//! concurrently with the calls, sometimes before the next one and sometimes after it.

use std::time::Duration;

use futures_util::TryStreamExt;
use serde::Serialize;
use sluicegate::dynamo::DynamoTable;
use sluicegate::dynamo::Reader;
use sluicegate::types::{AmountOf, EpochMillis};
use sluicegate::{CompositeStore, LeaseSettings, Limiter, TestClock};
use sluicegate_core::{LimitName, Resource, WindowKind, WindowSpan};
use sluicegate_local::poller::{self, Poller, StreamSource};
use sluicegate_local::{EmbeddedEngine, InProcess, client, table};
use sluicegate_processor::{Processor, Settings};

use super::board::Units;
use super::gateways::{Book, Gateways};
use super::patient::patient;
use super::traffic::{self, BUDGET, MODEL, PRICE, REQUESTS, TENANTS, TOKENS};
use crate::error::CliError;
use crate::feed::Feed;

const TABLE: &str = "sluicegate-demo";
/// 2026-01-28T14:00:00Z.
const START_MS: i64 = 1_769_608_800_000;
const BATCH_TIME: Duration = Duration::from_secs(60);
const SETTLING_TIME: Duration = Duration::from_secs(10);

/// The result of a run.
#[derive(Serialize)]
pub(super) struct Summary {
    seed: u64,
    seconds: u32,
    admitted: u64,
    refused: u64,
    tenants: Vec<Tenant>,
    write_units: Units,
    /// With leases: the writes per second and the requests admitted per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    leased: Option<Rates>,
    /// True if the usage windows equal the consumption of the gateways.
    pub(super) usage_is_exact: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    decisions_sha256: Option<String>,
}

#[derive(Serialize)]
struct Rates {
    admitted_per_s: f64,
    writes_per_s: f64,
}

#[derive(Serialize)]
struct Tenant {
    name: &'static str,
    admitted: u64,
    refused: u64,
    tokens: i64,
    spent_usd: String,
    /// Requests, tokens of text and dollars in the usage windows.
    counted_requests: i128,
    counted_tokens: i128,
    counted_usd: String,
}

impl Tenant {
    fn is_exact(&self) -> bool {
        self.counted_requests == i128::from(self.admitted)
            && self.counted_tokens == i128::from(self.tokens)
            && self.counted_usd == self.spent_usd
    }
}

pub(super) async fn run(seconds: u32, seed: u64, leased: bool) -> Result<Summary, CliError> {
    let clock = TestClock::at(EpochMillis::new(START_MS).map_err(CliError::bad)?);
    let engine = EmbeddedEngine::start_with_clock(clock.clone()).await?;
    let client = client::dynamodb(&engine.endpoint_url());
    table::create_table(&client, TABLE).await?;
    let table = DynamoTable::new(&client, TABLE);

    let arn = table::stream_arn(&client, TABLE).await?;
    let source = StreamSource::new(client::streams(&engine.endpoint_url()), arn);
    let feed = Feed::default();
    let processor = Processor::new(client.clone(), Settings::new(TABLE));
    let handler = InProcess::new(processor, BATCH_TIME).observed_by(feed.observer());
    let mut poller = Poller::new(source, handler, poller::Settings::default());

    let end_ms = START_MS + i64::from(seconds) * 1_000;
    let store = CompositeStore::with_table(table);
    let builder = Limiter::builder(store).clock(clock.clone());
    let limiter = patient(if leased { builder.leasing(LeaseSettings::default()) } else { builder });
    let gateways = Gateways::new(limiter.clone(), seed, START_MS);
    let played = play(gateways, &mut poller, &clock, end_ms).await?;
    let report = limiter.shutdown(SETTLING_TIME).await;
    if let Some((bucket, error)) = report.unsettled.into_iter().next() {
        return Err(CliError::Store(format!("{bucket} is not settled: {error}")));
    }
    poller.drain().await?;
    let admitted = played.books.iter().map(|book| book.admitted).sum();
    let per_s = |count: u64| count as f64 / f64::from(seconds);
    let tenants = tenants(&Reader::new(client, TABLE), &played.books).await?;
    let summary = Summary {
        seed,
        seconds,
        admitted,
        refused: played.books.iter().map(|book| book.refused).sum(),
        usage_is_exact: tenants.iter().all(Tenant::is_exact),
        tenants,
        write_units: Units {
            acquires: played.acquire_units,
            adjustments: played.adjust_units,
            metering: feed.totals().write_units,
        },
        leased: limiter.leased().map(|leased| Rates {
            admitted_per_s: per_s(admitted),
            writes_per_s: per_s(leased.writes()),
        }),
        decisions_sha256: (!leased).then_some(played.decisions_sha256),
    };
    engine.stop().await?;
    Ok(summary)
}

/// The results of the gateways.
struct Played {
    books: [Book; TENANTS],
    acquire_units: f64,
    adjust_units: f64,
    decisions_sha256: String,
}

/// Runs all events before `end_ms`. Metering runs concurrently, once a second.
async fn play(
    mut gateways: Gateways,
    poller: &mut Poller<StreamSource, InProcess>,
    clock: &TestClock,
    end_ms: i64,
) -> Result<Played, CliError> {
    while gateways.next_ms() < end_ms {
        let next_ms = gateways.next_ms();
        clock.set(EpochMillis::new(next_ms).map_err(CliError::bad)?);
        gateways.step().await?;
        if gateways.next_ms() / 1_000 > next_ms / 1_000 {
            poller.drain().await?;
        }
    }
    poller.drain().await?;
    let Gateways { books, acquire_units, adjust_units, .. } = gateways;
    let decisions_sha256 = gateways.decisions_sha256();
    Ok(Played { books, acquire_units, adjust_units, decisions_sha256 })
}

/// The gateways' books beside the hour windows.
async fn tenants(reader: &Reader, books: &[Book; TENANTS]) -> Result<Vec<Tenant>, CliError> {
    let resource = Resource::new(MODEL).map_err(CliError::bad)?;
    let starts = EpochMillis::MIN..EpochMillis::MAX;
    let hours = WindowSpan { kind: WindowKind::Hour, starts };
    let windows: Vec<_> = reader.usage_of_resource(&resource, &hours).try_collect().await?;
    let counted = |name: &str, limit: &str| {
        let limit = LimitName::new(limit).ok();
        let of_tenant = windows.iter().filter(|window| window.entity.to_string() == name);
        let milli = of_tenant.filter_map(|window| window.consumed_milli.get(limit.as_ref()?));
        milli.sum::<i128>()
    };
    let usd = |milli| AmountOf::new(BUDGET, milli).plain();
    let tenant = |(tenant, book): (usize, &Book)| Tenant {
        name: traffic::name(tenant),
        admitted: book.admitted,
        refused: book.refused,
        tokens: book.tokens,
        spent_usd: usd(i128::from(book.tokens) * i128::from(PRICE) * 1_000),
        counted_requests: counted(traffic::name(tenant), REQUESTS) / 1_000,
        counted_tokens: counted(traffic::name(tenant), TOKENS) / 1_000,
        counted_usd: usd(counted(traffic::name(tenant), BUDGET)),
    };
    Ok(books.iter().enumerate().map(tenant).collect())
}
