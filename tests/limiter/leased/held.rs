//! What a process holds: how old it may get, how much of it there may be, and how it ends.

use sluicegate::{LeaseMode, LeaseSettings, TestClock};

use super::{Counted, Mortal, SECOND, ample, leased};
use crate::support::{T0, at};

#[tokio::test(start_paused = true)]
async fn a_shutdown_reports_what_it_could_not_settle() {
    let table = Counted::new(1);
    let mortal = Mortal::new(&table);
    let clock = TestClock::at(at(T0));
    let mode = LeaseMode::WriteBehind { threshold: 10 };
    let settings = LeaseSettings { mode, ..LeaseSettings::default() };
    let limiter = leased(mortal.clone(), clock, settings);
    for entity in ["u0", "u1"] {
        let request = limiter.acquire(entity, "r").consume("rps", 1).limits(ample());
        request.no_cascade().await.unwrap();
    }
    mortal.kill();
    let report = limiter.shutdown(SECOND).await;
    let mut left: Vec<_> = report.unsettled.iter().map(|(id, _)| id.entity.as_str()).collect();
    left.sort_unstable();
    assert_eq!((report.settled, left), (0, vec!["u0", "u1"]));
}
