//! The roles of callers.

use serde_json::json;
use sluicegate::{Limiter, MemoryStore};

use crate::running::{Running, config};

/// `printf %s acquire-token | sha256sum` and the like.
fn callers() -> serde_json::Value {
    json!({"callers": [
        {"name": "gateway", "sha256": "46fdf73de96fac53a5f2805a6aa76128c3ef5a33d99424f9e22385ec524e0228", "roles": ["acquire"]},
        {"name": "page", "sha256": "0328587016f9e316b9c31c94f944a2c453e1494a564062b5eab68039c75b58bf", "roles": ["read"]},
        {"name": "admin", "sha256": "2de8e6cbdda43d8f8c4f33e79b7296ad4159d03cf42dbdf39c1e48ba6547fc61", "roles": ["operate"]},
    ]})
}

#[tokio::test]
async fn each_operation_needs_its_role() {
    let server = Running::in_memory(callers()).await;
    let acquire =
        json!({"entity": "u", "resource": "r", "amounts": {"rpm": 1}, "limits": ["rpm=9/h"]});
    let limits = json!({"limits": ["rpm=9/h"]});
    // On this store, 501 is the answer to an operation that is allowed.
    for (token, expected) in [
        ("acquire-token", [200, 403, 403]),
        ("read-token", [403, 501, 403]),
        ("operate-token", [403, 403, 501]),
        ("other-token", [401, 401, 401]),
    ] {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str())];
        let answers = [
            server.send("POST", "/v1/acquire", &headers, &acquire).await,
            server.send("GET", "/v1/limits", &headers, &json!(null)).await,
            server.send("PUT", "/v1/limits", &headers, &limits).await,
        ];
        assert_eq!(answers.each_ref().map(|answer| answer.status.as_u16()), expected, "{token}");
    }
    let without = server.post("/v1/acquire", &acquire).await;
    assert_eq!((without.status.as_u16(), without.header("www-authenticate")), (401, "Bearer"));
}

#[tokio::test]
async fn another_address_than_loopback_needs_callers() {
    let mut open = config(json!({}));
    open.listen.address = "0.0.0.0:0".parse().unwrap();
    let error =
        sluicegate_server::Server::bind(open.clone(), Limiter::new(MemoryStore::new())).await;
    assert!(error.err().unwrap().to_string().contains("without_callers"));
    open.listen.without_callers = true;
    assert!(sluicegate_server::Server::bind(open, Limiter::new(MemoryStore::new())).await.is_ok());
}
