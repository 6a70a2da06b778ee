//! A throttled table answers a read of several items with none of them.

use std::time::Duration;

use sluicegate::dynamo::DynamoTable;
use sluicegate::{AcquireError, Limit, TestClock};
use sluicegate_testkit::{LeaveOut, on_every_engine};

use crate::support::{DEADLINE, T0, at, limiter_on};

#[tokio::test(flavor = "multi_thread")]
async fn keys_left_out_are_read_with_pauses_and_are_no_outage() {
    on_every_engine(async |engine| {
        let name = engine.create_table().await;
        for (empty_answers, is_granted) in [(3, true), (u32::MAX, false)] {
            let fault = LeaveOut::beyond(0).at_first(empty_answers);
            let table = DynamoTable::new(&fault.client(engine.client()), &name);
            let limiter = limiter_on(table, &TestClock::at(at(T0)));
            let deadline = if is_granted { DEADLINE } else { Duration::from_secs(1) };
            let limits = [Limit::per_minute("rpm", 60)];
            // The entity's record and the bucket together.
            let request = limiter.acquire("u", "r").consume("rpm", 1).limits(limits);
            let result = request.deadline(deadline).await;
            if is_granted {
                result.unwrap();
            } else {
                assert!(matches!(result, Err(AcquireError::Contended { .. })), "{result:?}");
                // A pause is 25 ms on average in the end.
                let answers = fault.answers();
                assert!(answers < 200, "{answers} reads in a second");
            }
        }
    })
    .await;
}
