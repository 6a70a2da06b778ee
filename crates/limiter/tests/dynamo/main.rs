//! What the crate asks of DynamoDB, on every engine under test.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests panic")]

mod readers;
mod stored;
mod table;

use sluicegate::EntityId;
use sluicegate_testkit::{RunningEngine, engines_under_test};

/// Runs a test on one engine after the other.
async fn on_every_engine(test: impl AsyncFn(&RunningEngine)) {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        test(&engine).await;
        engine.stop().await;
    }
}

fn entity(name: &str) -> EntityId {
    EntityId::new(name).unwrap()
}
