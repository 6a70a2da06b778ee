//! Requests without a valid entity.

use axum::Router;
use axum::routing::get;
use http::header::{HeaderValue, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{Response, StatusCode};
use serde_json::json;
use sluicegate::{EntityId, Limit};
use sluicegate_tower::{LimitRequest, RateLimitLayer, Rejection};

use crate::{Answer, Extracted, app, ask, consumed, limiter, untyped};

#[tokio::test]
async fn names_and_amounts_of_clients_are_clients_mistakes() {
    let (limiter, _) = limiter();
    let app = app(&limiter, &[Limit::per_minute("rpm", 1), Limit::per_minute("tpm", 600)]);
    let long = "x".repeat(257);
    for headers in [
        vec![("x-user", "secret#1")],
        vec![("x-user", "")],
        vec![("x-user", long.as_str())],
        vec![("x-user", "u"), ("x-project", "secret#1")],
        vec![("x-user", "u"), ("x-project", "u")],
        vec![("x-user", "u"), ("x-tokens", "0")],
        vec![("x-user", "u"), ("x-tokens", "-5")],
        vec![("x-user", "u"), ("x-tokens", "1000000000000001")],
    ] {
        let refused = ask(&app, "/", &headers).await;
        assert_eq!(refused.figures(), (400, "", ""), "{headers:?}");
        assert_eq!(refused.field("retry-after"), "");
        let detail = "a name or an amount in the request is invalid: check the entity, the resource and the amounts";
        assert_eq!(refused.problem(), untyped(400, "Bad Request", detail));
    }
    assert_eq!(consumed(&limiter, "u", "rpm"), None);
}

#[tokio::test]
async fn names_and_rules_of_limits_are_the_programs_mistakes() {
    for (limits, consume) in [
        (vec![], "a b"),
        (vec![], "unknown"),
        (vec![Limit::per_minute("a b", 1)], "rpm"),
        (vec![Limit::per_minute("rpm", 1), Limit::per_minute("rpm", 2)], "rpm"),
    ] {
        let (limiter, _) = limiter();
        let layer = RateLimitLayer::new(limiter, move |_| {
            Ok(Some(LimitRequest::new("u", "api").consume(consume, 1).limits(limits.clone())))
        });
        let app = Router::new().route("/", get(|| async {})).layer(layer);
        assert_eq!(ask(&app, "/", &[]).await.status, 500, "{consume}");
    }
}

/// The response of a service behind this extractor.
async fn answer(extract: fn(&Parts) -> Extracted) -> Answer {
    let (limiter, _) = limiter();
    let layer = RateLimitLayer::new(limiter, extract);
    ask(&Router::new().route("/", get(|| async { "done" })).layer(layer), "/", &[]).await
}

#[tokio::test]
async fn an_extractor_answers_as_it_likes() {
    let unknown = answer(|parts| {
        let who = || {
            Rejection::new(StatusCode::UNAUTHORIZED, "say \"who\" you are")
                .header(WWW_AUTHENTICATE, HeaderValue::from_static("Basic"))
        };
        parts.headers.get("x-api-key").ok_or_else(who)?;
        Ok(None)
    })
    .await;
    assert_eq!(unknown.figures(), (401, "", ""));
    assert_eq!(unknown.field("www-authenticate"), "Basic");
    assert_eq!(unknown.problem(), untyped(401, "Unauthorized", "say \"who\" you are"));

    let forbidden = answer(|_| Err(StatusCode::FORBIDDEN)?).await;
    assert_eq!(
        (forbidden.status, forbidden.problem()),
        (403, json!({"type": "about:blank", "title": "Forbidden", "status": 403}))
    );

    let own = answer(|_| Err(Response::new("wait outside".to_owned()))?).await;
    assert_eq!((own.figures(), own.body.as_str()), ((200, "", ""), "wait outside"));
}

#[tokio::test]
async fn invalid_name_is_a_bad_request_by_itself() {
    let illegal = answer(|_| {
        let key = EntityId::new("secret#1")?;
        Ok(Some(LimitRequest::new(key.as_str(), "api")))
    });
    let no_text = answer(|_| {
        let key = HeaderValue::from_bytes(b"\xff").unwrap();
        Ok(Some(LimitRequest::new(key.to_str()?, "api")))
    });
    for (answer, detail) in [
        (illegal.await, "a name is empty, too long or has '#' or control characters"),
        (no_text.await, "a header has characters other than visible ASCII"),
    ] {
        assert_eq!(answer.status, 400);
        assert_eq!(answer.problem(), untyped(400, "Bad Request", detail));
    }
}
