//! Every kind of unavailability under every setting, on real servers behind a connection that can
//! be cut.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use sluicegate::{AcquireError, Limit, Limiter, OnUnavailable};
use sluicegate_testkit::Wire;

use super::pulse::Pulse;
use super::servers::{Data, DurableRedis, Embedded, Server};

/// The deadline of every call; longer than usual, since an answer that takes longer would be an
/// outage.
const DEADLINE: Duration = Duration::from_secs(1);
/// The most by which a call may exceed its deadline.
const SLACK: Duration = Duration::from_millis(250);
/// Counted from the moment at which the server answers a plain request.
const RECOVERY: Duration = Duration::from_secs(1);
/// Longer than any step here takes, unless it is broken.
const PATIENCE: Duration = Duration::from_secs(20);
/// The tokens of the bucket, and those taken before the outage.
const TOKENS: i64 = 40;
const BEFORE: i64 = 10;
const TASKS: usize = 8;
const ASKS: usize = 10;
/// The number of tries of a case on a machine that stands still.
const TRIES: u32 = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outage {
    /// Connections are closed, and new ones refused.
    ConnectionCut,
    /// Requests arrive and are executed; no answer comes in time.
    ReplyDelayed,
    /// The server ends and another one starts, with its data or without.
    Restarted(Data),
}

/// The numbers of requests granted by the store, granted without it, refused, and not decided.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Decisions {
    granted: i64,
    degraded: i64,
    refused: i64,
    unavailable: i64,
}

/// Asks for one token of a bucket that does not refill.
async fn ask(limiter: &Limiter, entity: &str) -> Decisions {
    let limits = [Limit::quota("q", TOKENS.unsigned_abs())];
    let request = limiter.acquire(entity, "r").consume("q", 1).limits(limits).no_cascade();
    let start = Instant::now();
    let result = request.await;
    assert!(start.elapsed() < DEADLINE + SLACK, "it took {:?}", start.elapsed());
    match result {
        Ok(permit) if permit.degraded().is_some() => {
            Decisions { degraded: 1, ..Decisions::default() }
        }
        Ok(_) => Decisions { granted: 1, ..Decisions::default() },
        Err(AcquireError::LimitExceeded(_)) => Decisions { refused: 1, ..Decisions::default() },
        Err(AcquireError::Unavailable(_)) => Decisions { unavailable: 1, ..Decisions::default() },
        Err(error) => panic!("{error:?}"),
    }
}

async fn ask_often(limiter: &Limiter) -> Decisions {
    let task = || async {
        let mut tally = Decisions::default();
        for _ in 0..ASKS {
            tally = tally.and(ask(limiter, "u").await);
        }
        tally
    };
    let tallies = futures_util::future::join_all((0..TASKS).map(|_| task())).await;
    tallies.into_iter().fold(Decisions::default(), Decisions::and)
}

impl Decisions {
    fn and(self, more: Self) -> Self {
        Self {
            granted: self.granted + more.granted,
            degraded: self.degraded + more.degraded,
            refused: self.refused + more.refused,
            unavailable: self.unavailable + more.unavailable,
        }
    }
}

/// Runs a case, and again if it failed while the machine stood still.
async fn on_a_steady_machine(case: impl AsyncFn()) {
    for _ in 1..TRIES {
        let pulse = Pulse::start();
        let Err(failure) = AssertUnwindSafe(case()).catch_unwind().await else { return };
        let Some(time) = pulse.stood_still() else { std::panic::resume_unwind(failure) };
        println!("the machine stood still for {time:?}: once more");
    }
    case().await;
}

async fn run<S: Server>(policy: OnUnavailable, outage: Outage) {
    on_a_steady_machine(async || away::<S>(policy, outage).await).await;
}

/// A limiter that has a connection and has taken some tokens.
async fn connected<S: Server>(server: &S, wire: &Wire, policy: OnUnavailable) -> Limiter {
    let limiter = Limiter::builder(server.store(wire.address()))
        .deadline(DEADLINE)
        .on_unavailable(policy)
        .build();
    limiter.warm_up().await.unwrap();
    for _ in 0..BEFORE {
        assert_eq!(ask(&limiter, "u").await.granted, 1);
    }
    limiter
}

async fn away<S: Server>(policy: OnUnavailable, outage: Outage) {
    let mut server = S::start().await;
    let wire = Wire::start(server.address()).await;
    let limiter = connected(&server, &wire, policy).await;
    match outage {
        Outage::ConnectionCut => wire.cut(),
        Outage::ReplyDelayed => wire.silence(),
        Outage::Restarted(_) => server.end().await,
    }
    let left = TOKENS - BEFORE;
    let asked = i64::try_from(TASKS * ASKS).unwrap();
    let tally = ask_often(&limiter).await;
    assert_eq!(
        tally,
        match policy {
            OnUnavailable::Allow => Decisions { degraded: asked, ..Decisions::default() },
            OnUnavailable::Deny => Decisions { unavailable: asked, ..Decisions::default() },
            OnUnavailable::Local =>
                Decisions { degraded: left, refused: asked - left, ..Decisions::default() },
            other => panic!("{other:?} has no row"),
        }
    );
    assert_spared(&limiter, &wire).await;

    if let Outage::Restarted(data) = outage {
        server.start_again(data).await;
        wire.lead_to(server.address());
    }
    wire.open();
    assert_back(&limiter, &server, &wire).await;
    assert_settled(&limiter, &server, outage, policy).await;
    server.end().await;
}

/// Checks that an unavailable store gets only probes.
async fn assert_spared(limiter: &Limiter, wire: &Wire) {
    assert_eq!(limiter.counters().outages.get(), 1);
    let (sent, start) = (wire.sent(), Instant::now());
    for _ in 0..200 {
        ask(limiter, "u").await;
    }
    // A probe every quarter of a second connects and sends its request in a piece or two.
    let probes = start.elapsed().as_millis() / 250 + 2;
    assert!(u128::from(wire.sent() - sent) <= 4 * probes, "{} pieces", wire.sent() - sent);
}

/// Checks that the store decides again within a second of its return, without help.
async fn assert_back<S: Server>(limiter: &Limiter, server: &S, wire: &Wire) {
    let start = Instant::now();
    while Limiter::new(server.store(wire.address())).warm_up().await.is_err() {
        assert!(start.elapsed() < PATIENCE, "the server does not come back");
    }
    let answered = Instant::now();
    while ask(limiter, "another").await.granted == 0 {
        assert!(answered.elapsed() < RECOVERY, "the store is back and is not asked");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Checks that everything left in the bucket is granted, and no more.
async fn assert_settled<S: Server>(
    limiter: &Limiter,
    server: &S,
    outage: Outage,
    policy: OnUnavailable,
) {
    let held = if outage == Outage::Restarted(Data::Lost) { TOKENS } else { TOKENS - BEFORE };
    let left = if policy == OnUnavailable::Local { held - (TOKENS - BEFORE) } else { held };
    // By another process, which has not seen the outage.
    let other = Limiter::builder(server.store(server.address()))
        .deadline(DEADLINE)
        .on_unavailable(OnUnavailable::Deny)
        .build();
    let start = Instant::now();
    loop {
        let owed = other.peek("u", "r").await.unwrap();
        let available = owed.iter().map(|limit| limit.available.get() / 1_000).next();
        // A bucket that does not exist counts as full.
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
        // Requests sent in the outage were executed, with or without a waiting caller.
        assert!(granted.granted <= left, "{granted:?}");
    } else {
        assert_eq!(granted.granted, left, "{granted:?}");
    }
}

/// A Redis that forgets its scripts is available: no call notices, under any setting.
async fn flushed(policy: OnUnavailable) {
    on_a_steady_machine(async || forgetful(policy).await).await;
}

async fn forgetful(policy: OnUnavailable) {
    let server = DurableRedis::start().await;
    let wire = Wire::start(server.address()).await;
    let limiter = connected(&server, &wire, policy).await;
    server.flush_scripts().await;
    let forgetting = async {
        loop {
            server.flush_scripts().await;
        }
    };
    let tally = tokio::select! {
        tally = ask_often(&limiter) => tally,
        () = forgetting => unreachable!("the loop has no end"),
    };
    let (left, asked) = (TOKENS - BEFORE, i64::try_from(TASKS * ASKS).unwrap());
    assert_eq!(tally, Decisions { granted: left, refused: asked - left, ..Decisions::default() });
    assert_eq!(limiter.counters().undecided_by_store.get(), 0);
}

macro_rules! matrix {
    (#[$attribute:meta] $server:ident, $($policy:ident: $name:ident),*) => {$(
        mod $name {
            use sluicegate::OnUnavailable::$policy;

            use super::super::{$server, Data, Outage, run};

            #[tokio::test(flavor = "multi_thread")]
            #[$attribute]
            async fn connection_cut() {
                run::<$server>($policy, Outage::ConnectionCut).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            #[$attribute]
            async fn reply_delayed_past_the_deadline() {
                run::<$server>($policy, Outage::ReplyDelayed).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            #[$attribute]
            async fn server_killed_and_restarted_with_its_data() {
                run::<$server>($policy, Outage::Restarted(Data::Kept)).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            #[$attribute]
            async fn server_killed_and_restarted_without_its_data() {
                run::<$server>($policy, Outage::Restarted(Data::Lost)).await;
            }
        }
    )*};
}

mod embedded {
    matrix!(#[doc = "Needs only Rust."] Embedded, Allow: allow, Deny: deny, Local: local);
}

mod redis {
    use sluicegate::OnUnavailable::{Allow, Deny, Local};

    use super::flushed;

    matrix!(#[ignore = "needs Redis: cargo xtask test"] DurableRedis, Allow: allow, Deny: deny, Local: local);

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs Redis: cargo xtask test"]
    async fn allow_and_scripts_flushed() {
        flushed(Allow).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs Redis: cargo xtask test"]
    async fn deny_and_scripts_flushed() {
        flushed(Deny).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs Redis: cargo xtask test"]
    async fn local_and_scripts_flushed() {
        flushed(Local).await;
    }
}
