//! Requests that pass.

use sluicegate::{Limit, Limiter};

use crate::{app, ask, consumed, limiter};

#[tokio::test]
async fn a_granted_request_says_what_is_left() {
    let (limiter, clock) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 100)]);
    for _ in 0..49 {
        ask(&app, "/", &[("x-user", "u")]).await;
    }
    let answer = ask(&app, "/", &[("x-user", "u")]).await;
    assert_eq!(answer.figures(), (200, r#""rpm";q=100;w=60"#, r#""rpm";r=50;t=30"#));
    assert_eq!((answer.body.as_str(), answer.field("retry-after")), ("done", ""));

    // 6 s refill ten tokens.
    clock.advance(std::time::Duration::from_secs(6));
    let answer = ask(&app, "/", &[("x-user", "u")]).await;
    assert_eq!(answer.field("ratelimit"), r#""rpm";r=59;t=25"#);
    // Another user has a bucket of its own.
    let answer = ask(&app, "/", &[("x-user", "v")]).await;
    assert_eq!(answer.field("ratelimit"), r#""rpm";r=99;t=1"#);
}

#[tokio::test]
async fn every_limit_is_a_member() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 10).burst(20), Limit::quota("tpm", 1_000)]);
    let answer = ask(&app, "/", &[("x-user", "u"), ("x-tokens", "400")]).await;
    assert_eq!(
        answer.figures(),
        (200, r#""rpm";q=20;w=60, "tpm";q=1000"#, r#""rpm";r=19;t=6, "tpm";r=600"#)
    );
}

#[tokio::test]
async fn a_parent_is_a_member_without_its_name() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 2)]);
    let of = |user: &'static str| [("x-user", user), ("x-project", "secret-project")];
    let answer = ask(&app, "/", &of("u")).await;
    let policy = r#""rpm";q=2;w=60, "parent:rpm";q=2;w=60"#;
    assert_eq!(answer.figures(), (200, policy, r#""rpm";r=1;t=30, "parent:rpm";r=1;t=30"#));
    ask(&app, "/", &of("v")).await;

    let refused = ask(&app, "/", &of("u")).await;
    assert_eq!(refused.figures(), (429, policy, r#""rpm";r=1;t=30, "parent:rpm";r=0;t=60"#));
    assert!(refused.body.ends_with(r#""violated-policies":["parent:rpm"]}"#), "{}", refused.body);
    assert!(!refused.body.contains("secret"));
    assert_eq!(consumed(&limiter, "u", "rpm"), Some(1_000));
    assert_eq!(consumed(&limiter, "secret-project", "rpm"), Some(2_000));
}

#[tokio::test]
async fn who_is_not_limited_notices_nothing() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 1)]);
    for _ in 0..3 {
        let answer = ask(&app, "/", &[]).await;
        assert_eq!(answer.figures(), (200, "", ""));
    }
}

#[tokio::test]
async fn a_handler_corrects_its_lease() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 10), Limit::per_minute("tpm", 1_000)]);
    let asked = [("x-user", "u"), ("x-tokens", "600")];
    let adjusted = ask(&app, "/adjust", &[asked[0], asked[1], ("x-by", "150")]).await;
    // The fields know of it.
    assert_eq!(adjusted.field("ratelimit"), r#""rpm";r=9;t=6, "tpm";r=250;t=45"#);
    assert_eq!(consumed(&limiter, "u", "tpm"), Some(750_000));

    // Below zero is nothing left.
    let few = [("x-user", "u"), ("x-tokens", "50"), ("x-by", "400")];
    assert_eq!(
        ask(&app, "/adjust", &few).await.field("ratelimit"),
        r#""rpm";r=8;t=12, "tpm";r=0;t=72"#
    );
    assert_eq!(consumed(&limiter, "u", "tpm"), Some(1_200_000));
}

#[tokio::test]
async fn a_handler_gives_back_once() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 10), Limit::per_minute("tpm", 1_000)]);
    let asked = [("x-user", "u"), ("x-tokens", "300")];
    ask(&app, "/", &asked).await;
    let failed = ask(&app, "/fail", &asked).await;
    assert_eq!(
        (failed.status, failed.field("ratelimit")),
        (502, r#""rpm";r=9;t=6, "tpm";r=700;t=18"#)
    );
    assert_eq!(consumed(&limiter, "u", "tpm"), Some(300_000));
    assert_eq!(consumed(&limiter, "u", "rpm"), Some(1_000));
}

#[tokio::test]
async fn a_trial_tells_nobody() {
    let (limiter, _) = limiter();
    let limiter = Limiter::shadow(limiter);
    let app = app(&limiter, &[Limit::per_minute("rpm", 1)]);
    for _ in 0..2 {
        assert_eq!(ask(&app, "/", &[("x-user", "u")]).await.figures(), (200, "", ""));
    }
    assert_eq!(limiter.counters().shadowed.get(), 1);
}
