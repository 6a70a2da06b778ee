//! Spans, as a collector of OpenTelemetry gets them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;
use sluicegate_server::SpanSender;
use sluicegate_server::config::Traces;
use tonic::{Request, Response, Status};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::running::Running;

/// Keeps the spans that it gets.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        self.0.lock().unwrap().extend(scopes.flat_map(|scope| scope.spans));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    async fn start(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = TraceServiceServer::new(self.clone());
        let router = axum::Router::new()
            .route_service("/opentelemetry.proto.collector.trace.v1.TraceService/Export", service);
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }
}

fn to(address: SocketAddr) -> Traces {
    Traces { endpoint: format!("http://{address}"), share: 0.0 }
}

async fn acquire(server: &Running, headers: &[(&str, &str)]) {
    let wanted =
        json!({"entity": "u", "resource": "r", "amounts": {"rpm": 1}, "limits": ["rpm=9/h"]});
    assert_eq!(server.send("POST", "/v1/acquire", headers, &wanted).await.status, 200);
}

#[tokio::test]
async fn a_request_that_its_caller_traces_is_a_part_of_that_trace() {
    let collector = Collector::default();
    let sender = SpanSender::start(&to(collector.start().await)).unwrap();
    // All tasks of this test run on its thread.
    let _subscribed = tracing_subscriber::registry().with(sender.layer()).set_default();
    let server = Running::in_memory(json!({})).await;
    acquire(&server, &[]).await;
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    acquire(&server, &[("traceparent", traceparent)]).await;
    let callers =
        json!({"callers": [{"name": "a", "sha256": "00".repeat(32), "roles": ["acquire"]}]});
    let guarded = Running::in_memory(callers).await;
    let headers = [("traceparent", traceparent)];
    let denied = guarded.send("POST", "/v1/acquire", &headers, &json!({})).await;
    assert_eq!(denied.status, 401, "{denied:?}");
    sender.stop().await;

    let mut spans = collector.0.lock().unwrap().clone();
    spans.sort_by_key(|span| span.start_time_unix_nano);
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["request", "acquire"], "the share is zero: no other request is traced");
    let trace = spans[0].trace_id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(trace, "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(spans[1].parent_span_id, spans[0].span_id);
    let attribute = |span: &Span, key: &str| {
        let found = span.attributes.iter().find(|attribute| attribute.key == key);
        format!("{:?}", found.and_then(|attribute| attribute.value.clone()))
    };
    assert!(attribute(&spans[0], "http.route").contains("/v1/acquire"), "{spans:?}");
    assert!(attribute(&spans[0], "http.response.status_code").contains("200"), "{spans:?}");
    assert!(attribute(&spans[1], "entity").contains("\"u\""), "{spans:?}");
}

#[tokio::test]
async fn a_collector_that_is_not_there_holds_up_nothing() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let sender = SpanSender::start(&to(nobody)).unwrap();
    let _subscribed = tracing_subscriber::registry().with(sender.layer()).set_default();
    let server = Running::in_memory(json!({})).await;
    acquire(&server, &[("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")])
        .await;
    let stopped = tokio::time::timeout(std::time::Duration::from_secs(20), sender.stop());
    stopped.await.expect("it gives up");
    assert!(SpanSender::start(&Traces { endpoint: "no url".to_owned(), share: 1.0 }).is_err());
}
