//! Strict leases of several processes on one bucket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluicegate::leasing::Accounting;
use sluicegate::{AcquireError, LeaseMode, LeaseSettings, Limit, Limiter};
use tokio::time::Instant;

use super::{Counted, Mortal, SECOND, consumed, leased};
use crate::simulated::Simulated;
use crate::support::{Engine as _, bucket, name};

pub(crate) struct Process {
    pub(crate) limiter: Limiter,
    table: Mortal,
    pub(crate) admitted: Arc<AtomicU64>,
}

const BURST: u64 = 10_000;
const TASKS: u32 = 16;

fn minute() -> Limit {
    Limit::per_minute("rps", BURST)
}

/// Processes that ask together for so many tokens a second.
pub(crate) struct Crowd {
    pub(crate) processes: Vec<Process>,
    tasks: tokio::task::JoinSet<()>,
    is_over: Arc<AtomicBool>,
}

impl Crowd {
    pub(crate) fn start(table: &Counted, count: u32, per_s: u32, mode: LeaseMode) -> Self {
        Self::apart(table, count, per_s, mode, 0)
    }

    /// With clocks this far apart, one from the next.
    fn apart(table: &Counted, count: u32, per_s: u32, mode: LeaseMode, apart_ms: i64) -> Self {
        let start = Instant::now();
        let process = |n| {
            let clock = Simulated { start, off_ms: n * apart_ms };
            let settings = LeaseSettings { mode, ..LeaseSettings::default() };
            let table = Mortal::new(table);
            let limiter = leased(table.clone(), clock, settings);
            Process { limiter, table, admitted: Arc::default() }
        };
        let processes: Vec<_> = (0..i64::from(count)).map(process).collect();
        let mut crowd = Self { processes, tasks: Default::default(), is_over: Arc::default() };
        let every = SECOND * TASKS * count / per_s;
        for process in &crowd.processes {
            for task in 0..TASKS {
                let (limiter, is_over) = (process.limiter.clone(), crowd.is_over.clone());
                let (table, admitted) = (process.table.clone(), process.admitted.clone());
                crowd.tasks.spawn(async move {
                    let mut next = Instant::now() + every * task / TASKS;
                    while !is_over.load(Ordering::Relaxed) {
                        tokio::time::sleep_until(next).await;
                        next += every;
                        let request = limiter.acquire("u0", "r").consume("rps", 1);
                        match request.limits([minute()]).no_cascade().await {
                            Ok(_) => _ = admitted.fetch_add(1, Ordering::Relaxed),
                            Err(AcquireError::LimitExceeded(_)) => {}
                            Err(_) if table.is_dead() => return,
                            Err(error) => {
                                panic!("{error:?}")
                            }
                        }
                    }
                });
            }
        }
        crowd
    }

    pub(crate) async fn stop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(result) = self.tasks.join_next().await {
            result.unwrap();
        }
    }
}

/// The tokens that the bucket held and earned.
pub(crate) fn at_most(start: Instant) -> u64 {
    BURST + BURST * u64::try_from(start.elapsed().as_millis()).unwrap() / 60_000
}

pub(crate) fn admitted(processes: &[Process]) -> u64 {
    processes.iter().map(|process| process.admitted.load(Ordering::Relaxed)).sum()
}

#[tokio::test(start_paused = true)]
async fn processes_that_ask_for_too_much_get_all_of_it_and_no_more() {
    for accounting in [Accounting::AtLease, Accounting::AtSettle] {
        let table = Counted::new(4);
        let start = Instant::now();
        let mut crowd = Crowd::start(&table, 4, 2_000, LeaseMode::Strict(accounting));
        tokio::time::sleep(15 * SECOND).await;
        crowd.stop().await;
        let processes = crowd.processes;
        for process in &processes {
            let report = process.limiter.shutdown(SECOND).await;
            assert!(report.unsettled.is_empty(), "{report:?}");
        }
        let (admitted, writes) = (admitted(&processes), table.writes());
        let shares: Vec<_> = processes.iter().map(|p| p.admitted.load(Ordering::Relaxed)).collect();
        let own: Vec<_> = processes.iter().map(|p| p.limiter.leased().unwrap().writes()).collect();
        println!("{accounting:?}: {admitted} admitted, {shares:?}, {writes} writes: {own:?}");
        let most = at_most(start);
        assert!(admitted <= most, "{admitted} of {most}");
        assert!(admitted * 100 >= most * 98, "{admitted} of {most}");
        assert_eq!(consumed(&table, "u0").await, i64::try_from(admitted).unwrap());
        assert!(shares.iter().all(|share| share * 5 > admitted), "unfair: {shares:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_process_loses_what_it_held_and_gains_nothing() {
    let table = Counted::new(4);
    let start = Instant::now();
    let mut crowd = Crowd::apart(&table, 4, 2_000, LeaseMode::default(), 1);
    tokio::time::sleep(3 * SECOND).await;
    let processes = &crowd.processes;
    // Answers to dead processes no longer count.
    let mut dead = 0;
    for process in &processes[..2] {
        process.table.kill();
        dead += process.admitted.load(Ordering::Relaxed);
    }
    tokio::time::sleep(10 * SECOND).await;
    crowd.stop().await;
    let mut alive = 0;
    for process in &crowd.processes[2..] {
        process.limiter.shutdown(SECOND).await;
        alive += process.admitted.load(Ordering::Relaxed);
    }
    let counted = u64::try_from(consumed(&table, "u0").await).unwrap();
    let most = at_most(start);
    println!("{dead} and {alive} admitted, {counted} counted, at most {most}");
    assert!(dead + alive <= counted && counted <= most + 4);
    // A lease of a quarter of what was there, at most.
    assert!(counted - dead - alive <= BURST / 2, "{}", counted - dead - alive);
}

#[tokio::test(start_paused = true)]
async fn an_idle_process_holds_nothing() {
    let table = Counted::new(4);
    let mut crowd = Crowd::start(&table, 1, 1_000, LeaseMode::default());
    tokio::time::sleep(3 * SECOND).await;
    crowd.stop().await;
    let processes = crowd.processes;
    tokio::time::sleep(2 * SECOND).await;
    let writes = table.writes();
    processes[0].table.kill();
    assert_eq!(consumed(&table, "u0").await, i64::try_from(admitted(&processes)).unwrap());
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(table.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_no_more_requests_than_it_may_be_though_they_are_small() {
    let table = Counted::new(1);
    let clock = Simulated { start: Instant::now(), off_ms: 0 };
    let limiter =
        leased(table.clone(), clock, LeaseSettings { max_requests: 10, ..Default::default() });
    for asked in 1..=200 {
        let request = limiter.acquire("u0", "r").consume_milli("rps", 1).limits([minute()]);
        request.no_cascade().await.unwrap();
        let image = table.memory().image(&bucket("u0", "r")).await.unwrap();
        let leased = image.limits[&name("rps")].consumed.get();
        // One lease, and one that was made ahead of need.
        assert!(leased <= asked + 20, "{leased} for {asked} millitokens");
        tokio::time::sleep(SECOND / 1_000).await;
    }
    assert!(table.writes() < 100, "{} writes", table.writes());
}
