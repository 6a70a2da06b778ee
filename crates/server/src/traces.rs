//! Traces of requests, sent to a collector of OpenTelemetry.

use std::time::Duration;

use axum::response::Response;
use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing::{Span, Subscriber, field};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

use crate::config::Traces;
use crate::start_error::StartError;

/// The time for a collector to take the last spans.
const LAST_SPANS: Duration = Duration::from_secs(5);

/// Sends spans to a collector, in the background. A collector that does not answer loses spans and
/// holds up no request.
pub struct SpanSender {
    provider: SdkTracerProvider,
}

impl SpanSender {
    /// A sender to the collector of the configuration. Call it in a runtime of tokio.
    ///
    /// # Errors
    /// [`StartError::Traces`] for a URL that cannot be used.
    pub fn start(traces: &Traces) -> Result<Self, StartError> {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(&traces.endpoint).build();
        let exporter = exporter.map_err(|error| StartError::Traces(error.to_string()))?;
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(traces.share)));
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(sampler)
            .with_resource(Resource::builder().with_service_name("sluicegate").build())
            .build();
        Ok(Self { provider })
    }

    /// The layer for a subscriber: the spans of requests and of the limiter's acquires, which name
    /// the entity.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let spans = Targets::new()
            .with_target("sluicegate", LevelFilter::INFO)
            .with_target("sluicegate_server", LevelFilter::INFO)
            .with_target("sluicegate::access", LevelFilter::OFF);
        let tracer = self.provider.tracer("sluicegate");
        tracing_opentelemetry::layer().with_tracer(tracer).with_filter(spans)
    }

    /// Sends the spans that are left.
    pub async fn stop(self) {
        let sent = move || self.provider.shutdown_with_timeout(LAST_SPANS);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(sent).await {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// The span of a request; part of its caller's trace if the headers have a `traceparent`.
pub(crate) fn span(method: &str, path: &str, headers: Option<&HeaderMap>) -> Span {
    let span = tracing::info_span!(
        "request",
        otel.kind = "server",
        http.request.method = method,
        http.route = path,
        http.response.status_code = field::Empty,
    );
    if let Some(headers) = headers.filter(|_| !span.is_disabled()) {
        let context = TraceContextPropagator::new().extract(&Headers(headers));
        // It fails only where spans go to nobody.
        let _ = span.set_parent(context);
    }
    span
}

/// Adds the status to the span of a request.
pub(crate) fn record(span: &Span, response: &Response) {
    span.record("http.response.status_code", response.status().as_u16());
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}
