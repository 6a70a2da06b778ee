//! A user without permissions gets nothing, for as long as the permissions are missing.

use aws_sdk_dynamodb::Client;
use sluicegate::error::SetupError;
use sluicegate::{AcquireError, DynamoStore, Limiter, OnUnavailable};
use sluicegate_local::client;
use sluicegate_testkit::{
    DeniedTable, EngineKind, Fault, Proxy, RunningEngine, engines_under_test,
};

use crate::support::DEADLINE;

const TABLE: &str = "sluicegate-denied";

/// On MiniStack, which enforces permissions as AWS does. On engines that have none, a proxy answers
/// "access denied".
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_permission_admits_nothing_under_any_setting() {
    for kind in engines_under_test() {
        if kind == EngineKind::MiniStack {
            let denied = DeniedTable::start(TABLE).await;
            admits_nothing(&denied.user, TABLE).await;
            admits(&denied.owner, TABLE).await;
            continue;
        }
        println!("{kind:?} enforces no permissions: a proxy does");
        let engine = RunningEngine::start(kind).await;
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        proxy.inject(|_| Fault::DENIED);
        admits_nothing(&client::dynamodb(&proxy.endpoint_url()), &table).await;
        admits(engine.client(), &table).await;
        engine.stop().await;
    }
}

async fn admits_nothing(user: &Client, table: &str) {
    for policy in [OnUnavailable::Allow, OnUnavailable::Local, OnUnavailable::Deny] {
        let limiter = Limiter::builder(DynamoStore::new(user.clone(), table))
            .deadline(DEADLINE)
            .connect_deadline(DEADLINE)
            .on_unavailable(policy)
            .build();
        let warmed = limiter.warm_up().await;
        assert!(matches!(warmed, Err(AcquireError::Setup(SetupError::Denied(_)))), "{warmed:?}");
        for _ in 0..20 {
            let denied = super::ask!(limiter, 1).await;
            assert!(
                matches!(denied, Err(AcquireError::Setup(SetupError::Denied(_)))),
                "{denied:?}"
            );
        }
        let counters = limiter.counters();
        let counts =
            (counters.degraded.get(), counters.undecided_by_store.get(), counters.outages.get());
        assert_eq!(counts, (0, 0, 0));
    }
}

/// The owner is granted the same request.
async fn admits(owner: &Client, table: &str) {
    let limiter =
        Limiter::builder(DynamoStore::new(owner.clone(), table)).deadline(DEADLINE).build();
    assert!(super::ask!(limiter, 60).await.unwrap().degraded().is_none());
}
