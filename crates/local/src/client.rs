//! SDK clients for an engine on loopback: dummy credentials, plain HTTP, no retries.
//!
//! Retries are off for two reasons: a server counts exactly the requests that a caller sends, and
//! the code under test, not the SDK, sees a fault that a test injects.

use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::{
    BehaviorVersion, Credentials, Region, SharedHttpClient, StalledStreamProtectionConfig,
};
use aws_smithy_http_client::tls::{self, rustls_provider::CryptoMode};

pub use crate::read_once::ReadOnce;
pub use sluicegate_processor::https_client;

/// The region that loopback clients sign for.
pub const REGION: &str = "us-east-1";

/// A DynamoDB client for the engine at `endpoint_url`.
#[must_use]
pub fn dynamodb(endpoint_url: &str) -> aws_sdk_dynamodb::Client {
    aws_sdk_dynamodb::Client::from_conf(dynamodb_config(endpoint_url).build())
}

/// The configuration behind [`dynamodb`], for a caller that wants to change a part of it.
#[must_use]
pub fn dynamodb_config(endpoint_url: &str) -> aws_sdk_dynamodb::config::Builder {
    aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static(REGION))
        .credentials_provider(dummy_credentials())
        .endpoint_url(endpoint_url)
        .http_client(loopback_http_client())
        .retry_config(RetryConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .interceptor(ReadOnce::new("dynamodb", aws_sdk_dynamodb::meta::PKG_VERSION))
}

/// A DynamoDB Streams client for the engine at `endpoint_url`.
#[must_use]
pub fn streams(endpoint_url: &str) -> aws_sdk_dynamodbstreams::Client {
    let config = aws_sdk_dynamodbstreams::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static(REGION))
        .credentials_provider(dummy_credentials())
        .endpoint_url(endpoint_url)
        .http_client(loopback_http_client())
        .retry_config(RetryConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .interceptor(ReadOnce::new("dynamodbstreams", aws_sdk_dynamodbstreams::meta::PKG_VERSION))
        .build();
    aws_sdk_dynamodbstreams::Client::from_conf(config)
}

/// A client without TLS roots: an engine on loopback speaks plain HTTP. Reading the system's root
/// certificates costs milliseconds per process and warns if there are none (containers).
fn loopback_http_client() -> SharedHttpClient {
    let context = tls::TlsContext::builder().with_trust_store(tls::TrustStore::empty()).build();
    let builder = aws_smithy_http_client::Builder::new()
        .tls_provider(tls::Provider::Rustls(CryptoMode::Ring));
    match context {
        Ok(context) => builder.tls_context(context).build_https(),
        Err(_) => builder.build_https(),
    }
}

fn dummy_credentials() -> Credentials {
    Credentials::new("local", "local", None, None, "sluicegate-local")
}
