//! Every way of being away, under every setting, on real servers behind a wire that can be cut.
//!
//! A server is a type here, so that every store whose server can be started joins by one `impl`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sluicegate::{
    AcquireError, CompositeStore, DynamoStore, DynamoTable, Limit, Limiter, OnUnavailable, Store,
};
use sluicegate_local::{EmbeddedEngine, Storage, client};
use sluicegate_testkit::Wire;

/// The machine may be busy: an answer that takes longer would be an outage.
const DEADLINE: Duration = Duration::from_secs(1);
/// Nothing here takes so long that is not broken.
const PATIENCE: Duration = Duration::from_secs(20);
/// What the bucket holds, and what is taken of it before the outage.
const TOKENS: i64 = 40;
const BEFORE: i64 = 10;
const TASKS: usize = 8;
const ASKS: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outage {
    /// Connections are closed, and new ones refused.
    ConnectionCut,
    /// What is sent arrives and is done; nothing is answered in time.
    ReplyDelayed,
    /// The server ends and another one starts on its data.
    RestartedWithData,
    /// The same without them.
    RestartedWithoutData,
}

/// A server that can be ended and started again, on other ports.
pub(super) trait Server: Sized {
    type Store: Store;

    async fn start() -> Self;
    fn address(&self) -> SocketAddr;
    /// A store on what listens there.
    fn store(&self, address: SocketAddr) -> Self::Store;
    async fn end(&mut self);
    async fn start_again(&mut self, outage: Outage);
}

/// The embedded DynamoDB, on a file.
pub(super) struct Embedded {
    engine: Option<EmbeddedEngine>,
    folder: tempfile::TempDir,
    files: u32,
}

const TABLE: &str = "sluicegate-away";

impl Embedded {
    async fn serve(&mut self) {
        let file = self.folder.path().join(format!("{}.db", self.files));
        let is_new = !file.exists();
        let engine = EmbeddedEngine::start(Storage::File(file)).await.unwrap();
        if is_new {
            let client = client::dynamodb(&engine.endpoint_url());
            sluicegate::dynamo::create_table(&client, TABLE).await.unwrap();
        }
        self.engine = Some(engine);
    }
}

impl Server for Embedded {
    type Store = DynamoStore;

    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Self { engine: None, folder, files: 0 };
        server.serve().await;
        server
    }

    fn address(&self) -> SocketAddr {
        let url = self.engine.as_ref().unwrap().endpoint_url();
        url.trim_start_matches("http://").parse().unwrap()
    }

    fn store(&self, address: SocketAddr) -> DynamoStore {
        let client = client::dynamodb(&format!("http://{address}"));
        CompositeStore::on(DynamoTable::new(&client, TABLE))
    }

    async fn end(&mut self) {
        self.engine.take().unwrap().stop().await.unwrap();
    }

    async fn start_again(&mut self, outage: Outage) {
        self.files += u32::from(outage == Outage::RestartedWithoutData);
        self.serve().await;
    }
}

/// How many requests were granted by the store, without it, refused, and not decided.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tally {
    granted: i64,
    degraded: i64,
    refused: i64,
    unavailable: i64,
}

/// Asks for one token of a bucket that does not refill.
async fn ask<S: Store>(limiter: &Limiter<S>, entity: &str) -> Tally {
    let limits = [Limit::quota("q", TOKENS.unsigned_abs())];
    let request = limiter.acquire(entity, "r").consume("q", 1).limits(limits).no_cascade();
    let start = Instant::now();
    let result = request.await;
    assert!(start.elapsed() < DEADLINE + PATIENCE, "{:?}", start.elapsed());
    match result {
        Ok(lease) if lease.degraded().is_some() => Tally { degraded: 1, ..Tally::default() },
        Ok(_) => Tally { granted: 1, ..Tally::default() },
        Err(AcquireError::LimitExceeded(_)) => Tally { refused: 1, ..Tally::default() },
        Err(AcquireError::Unavailable(_)) => Tally { unavailable: 1, ..Tally::default() },
        Err(error) => panic!("{error:?}"),
    }
}

async fn ask_often<S: Store>(limiter: &Limiter<S>) -> Tally {
    let task = || async {
        let mut tally = Tally::default();
        for _ in 0..ASKS {
            tally = tally.and(ask(limiter, "u").await);
        }
        tally
    };
    let tallies = futures_util::future::join_all((0..TASKS).map(|_| task())).await;
    tallies.into_iter().fold(Tally::default(), Tally::and)
}

impl Tally {
    fn and(self, more: Self) -> Self {
        Self {
            granted: self.granted + more.granted,
            degraded: self.degraded + more.degraded,
            refused: self.refused + more.refused,
            unavailable: self.unavailable + more.unavailable,
        }
    }
}

pub(super) async fn run<S: Server>(policy: OnUnavailable, outage: Outage) {
    let mut server = S::start().await;
    let wire = Wire::start(server.address()).await;
    let limiter =
        Limiter::new(server.store(wire.address())).deadline(DEADLINE).on_unavailable(policy);
    limiter.warm_up().await.unwrap();
    for _ in 0..BEFORE {
        assert_eq!(ask(&limiter, "u").await.granted, 1);
    }

    match outage {
        Outage::ConnectionCut => wire.cut(),
        Outage::ReplyDelayed => wire.silence(),
        Outage::RestartedWithData | Outage::RestartedWithoutData => {
            wire.cut();
            server.end().await;
            wire.open();
        }
    }
    let left = TOKENS - BEFORE;
    let asked = i64::try_from(TASKS * ASKS).unwrap();
    let tally = ask_often(&limiter).await;
    assert_eq!(
        tally,
        match policy {
            OnUnavailable::Allow => Tally { degraded: asked, ..Tally::default() },
            OnUnavailable::Deny => Tally { unavailable: asked, ..Tally::default() },
            OnUnavailable::Local =>
                Tally { degraded: left, refused: asked - left, ..Tally::default() },
        }
    );
    is_spared(&limiter, &wire).await;

    if matches!(outage, Outage::RestartedWithData | Outage::RestartedWithoutData) {
        server.start_again(outage).await;
        wire.lead_to(server.address());
    }
    wire.open();
    is_back(&limiter).await;
    settled(&limiter, &server, outage, policy).await;
    server.end().await;
}

/// Nobody asks a store that is away, but for a probe now and then.
async fn is_spared<S: Store>(limiter: &Limiter<S>, wire: &Wire) {
    assert_eq!(limiter.counters().outages.get(), 1);
    let (sent, start) = (wire.sent(), Instant::now());
    for _ in 0..200 {
        ask(limiter, "u").await;
    }
    // A probe every quarter of a second connects and sends its request in a piece or two.
    let probes = start.elapsed().as_millis() / 250 + 2;
    assert!(u128::from(wire.sent() - sent) <= 4 * probes, "{} pieces", wire.sent() - sent);
}

/// The store decides again, without anybody's help.
async fn is_back<S: Store>(limiter: &Limiter<S>) {
    let start = Instant::now();
    while ask(limiter, "another").await.granted == 0 {
        assert!(start.elapsed() < PATIENCE, "the store is back and is not asked");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Everything that the bucket has left is granted, and no more than that.
async fn settled<S: Server>(
    limiter: &Limiter<S::Store>,
    server: &S,
    outage: Outage,
    policy: OnUnavailable,
) {
    let held = if outage == Outage::RestartedWithoutData { TOKENS } else { TOKENS - BEFORE };
    let left = if policy == OnUnavailable::Local { held - (TOKENS - BEFORE) } else { held };
    // By another process, which has seen nothing of it.
    let other = Limiter::new(server.store(server.address()))
        .deadline(PATIENCE)
        .on_unavailable(OnUnavailable::Deny);
    let start = Instant::now();
    loop {
        let owed = other.peek("u", "r").await.unwrap();
        let available = owed.iter().map(|limit| limit.available.get() / 1_000).next();
        // A bucket that is not there is a full one.
        if policy != OnUnavailable::Local || available.is_some_and(|available| available <= left) {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{available:?} left instead of {left}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut granted = ask_often(limiter).await;
    granted = granted.and(ask_often(&other).await);
    assert_eq!((granted.degraded, granted.unavailable), (0, 0), "{granted:?}");
    if outage == Outage::ReplyDelayed {
        // What was sent in the outage was done, whoever waited for it.
        assert!(granted.granted <= left, "{granted:?}");
    } else {
        assert_eq!(granted.granted, left, "{granted:?}");
    }
}

macro_rules! matrix {
    ($server:ident, $($policy:ident: $name:ident),*) => {$(
        mod $name {
            use sluicegate::OnUnavailable::$policy;

            use super::super::{$server, Outage, run};

            #[tokio::test(flavor = "multi_thread")]
            async fn connection_cut() {
                run::<$server>($policy, Outage::ConnectionCut).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn reply_delayed_past_the_deadline() {
                run::<$server>($policy, Outage::ReplyDelayed).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn server_killed_and_restarted_with_its_data() {
                run::<$server>($policy, Outage::RestartedWithData).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn server_killed_and_restarted_without_its_data() {
                run::<$server>($policy, Outage::RestartedWithoutData).await;
            }
        }
    )*};
}

mod embedded {
    matrix!(Embedded, Allow: allow, Deny: deny, Local: local);
}
