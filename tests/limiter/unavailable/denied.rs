//! A user without permissions gets nothing, however long nobody gives any.

use sluicegate::{AcquireError, DynamoStore, Limiter, OnUnavailable, SetupError};
use sluicegate_testkit::{EngineKind, Guarded, engines_under_test};

const TABLE: &str = "sluicegate-guarded";

/// On MiniStack, which enforces permissions as AWS does; where it is not under test, proxies and
/// scripts say "access denied" in its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_permission_admits_nothing_under_any_setting() {
    if !engines_under_test().contains(&EngineKind::MiniStack) {
        return;
    }
    let guarded = Guarded::start(TABLE).await;
    for policy in [OnUnavailable::Allow, OnUnavailable::Local, OnUnavailable::Deny] {
        let limiter = Limiter::new(DynamoStore::new(guarded.user.clone(), TABLE))
            .deadline(std::time::Duration::from_secs(20))
            .on_unavailable(policy);
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
        let counts = (counters.degraded.get(), counters.unanswered.get(), counters.outages.get());
        assert_eq!(counts, (0, 0, 0));
    }
    // Whoever may is granted the very same.
    let owner = Limiter::new(DynamoStore::new(guarded.owner.clone(), TABLE))
        .deadline(std::time::Duration::from_secs(20));
    assert!(super::ask!(owner, 60).await.unwrap().degraded().is_none());
}
