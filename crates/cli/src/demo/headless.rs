//! The demo without a terminal and without waiting: a simulated clock, a summary as JSON.
//!
//! The same seed makes the same decisions, whatever the machine: the only clock that the limiter
//! and the engine know is moved from event to event.

use std::time::Duration;

use futures_util::TryStreamExt;
use serde::Serialize;
use sluicegate::dynamo::Reader;
use sluicegate::{CompositeStore, DynamoTable, EpochMillis, Limiter, TestClock};
use sluicegate_core::{LimitName, Resource, WindowKind, WindowSpan};
use sluicegate_local::poller::{self, Poller, StreamSource};
use sluicegate_local::{EmbeddedEngine, InProcess, client, table};
use sluicegate_processor::{Processor, Settings};

use super::gateways::{Book, Gateways};
use super::traffic::{self, MODEL, REQUESTS, TENANTS, TOKENS};
use crate::error::CliError;
use crate::feed::Feed;

const TABLE: &str = "sluicegate-demo";
/// 2026-01-28T14:00:00Z.
const START_MS: i64 = 1_769_608_800_000;
const BATCH_TIME: Duration = Duration::from_secs(60);

/// What a run came to.
#[derive(Serialize)]
pub(super) struct Summary {
    seed: u64,
    seconds: u32,
    admitted: u64,
    refused: u64,
    tenants: Vec<Tenant>,
    write_units: WriteUnits,
    /// Whether the usage windows hold exactly what the gateways consumed.
    pub(super) usage_is_exact: bool,
    decisions_sha256: String,
}

#[derive(Serialize)]
struct Tenant {
    name: &'static str,
    admitted: u64,
    refused: u64,
    tokens: i64,
    /// Requests and tokens of text in the usage windows.
    counted_requests: i128,
    counted_tokens: i128,
}

impl Tenant {
    fn is_exact(&self) -> bool {
        self.counted_requests == i128::from(self.admitted)
            && self.counted_tokens == i128::from(self.tokens)
    }
}

#[derive(Serialize)]
struct WriteUnits {
    acquires: f64,
    adjustments: f64,
    metering: f64,
}

pub(super) async fn run(seconds: u32, seed: u64) -> Result<Summary, CliError> {
    let clock = TestClock::at(EpochMillis::new(START_MS).map_err(CliError::bad)?);
    let engine = EmbeddedEngine::start_with_clock(clock.clone()).await?;
    let client = client::dynamodb(&engine.endpoint_url());
    table::create_table(&client, TABLE).await?;
    let table = DynamoTable::new(&client, TABLE);
    let limiter = Limiter::with_clock(CompositeStore::on(table), clock.clone());
    let mut gateways = Gateways::new(limiter, seed, START_MS);

    let arn = table::stream_arn(&client, TABLE).await?;
    let source = StreamSource::new(client::streams(&engine.endpoint_url()), arn);
    let feed = Feed::default();
    let processor = Processor::new(client.clone(), Settings::new(TABLE));
    let handler = InProcess::new(processor, BATCH_TIME).observed_by(feed.observer());
    let mut poller = Poller::new(source, handler, poller::Settings::default());

    let end_ms = START_MS + i64::from(seconds) * 1_000;
    play(&mut gateways, &mut poller, &clock, end_ms).await?;
    let tenants = tenants(&Reader::new(client, TABLE), &gateways.books).await?;
    let summary = Summary {
        seed,
        seconds,
        admitted: gateways.books.iter().map(|book| book.admitted).sum(),
        refused: gateways.books.iter().map(|book| book.refused).sum(),
        usage_is_exact: tenants.iter().all(Tenant::is_exact),
        tenants,
        write_units: WriteUnits {
            acquires: gateways.acquire_units,
            adjustments: gateways.adjust_units,
            metering: feed.totals().write_units,
        },
        decisions_sha256: gateways.decisions_sha256(),
    };
    drop(gateways);
    engine.stop().await?;
    Ok(summary)
}

/// Lets everything happen that is due before `end_ms`. Metering runs beside, once a second.
async fn play(
    gateways: &mut Gateways<TestClock>,
    poller: &mut Poller<StreamSource, InProcess>,
    clock: &TestClock,
    end_ms: i64,
) -> Result<(), CliError> {
    while gateways.next_ms() < end_ms {
        let next_ms = gateways.next_ms();
        clock.set(EpochMillis::new(next_ms).map_err(CliError::bad)?);
        gateways.step().await?;
        if gateways.next_ms() / 1_000 > next_ms / 1_000 {
            poller.drain().await?;
        }
    }
    poller.drain().await?;
    Ok(())
}

/// The gateways' books beside what the hour windows hold.
async fn tenants(reader: &Reader, books: &[Book; TENANTS]) -> Result<Vec<Tenant>, CliError> {
    let resource = Resource::new(MODEL).map_err(CliError::bad)?;
    let starts = EpochMillis::MIN..EpochMillis::MAX;
    let hours = WindowSpan { kind: WindowKind::Hour, starts };
    let windows: Vec<_> = reader.usage_of_resource(&resource, &hours).try_collect().await?;
    let counted = |name: &str, limit: &str| {
        let limit = LimitName::new(limit).ok();
        let of_tenant = windows.iter().filter(|window| window.entity.to_string() == name);
        let milli = of_tenant.filter_map(|window| window.consumed_milli.get(limit.as_ref()?));
        milli.sum::<i128>() / 1_000
    };
    let tenant = |(tenant, book): (usize, &Book)| Tenant {
        name: traffic::name(tenant),
        admitted: book.admitted,
        refused: book.refused,
        tokens: book.tokens,
        counted_requests: counted(traffic::name(tenant), REQUESTS),
        counted_tokens: counted(traffic::name(tenant), TOKENS),
    };
    Ok(books.iter().enumerate().map(tenant).collect())
}
