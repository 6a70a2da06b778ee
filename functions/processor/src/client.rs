//! Makes the processor's DynamoDB client: once, before the first event.

use std::time::Duration;

use aws_config::SdkConfig;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::SharedHttpClient;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};

/// Long enough for a TLS handshake across a region, short enough to try again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// DynamoDB answers in milliseconds; after this time the reply is taken as lost.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);

/// TLS by rustls and Ring, with the system's root certificates.
#[must_use]
pub fn https_client() -> SharedHttpClient {
    aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https()
}

/// The usual AWS environment (region, credentials, `AWS_ENDPOINT_URL`) with Ring for TLS.
pub async fn sdk_config() -> SdkConfig {
    let defaults = aws_config::defaults(aws_config::BehaviorVersion::latest());
    defaults.http_client(https_client()).load().await
}

/// A client whose every call is one attempt: the processor repeats calls itself, within the time
/// that the invocation has left.
#[must_use]
pub fn client(config: &SdkConfig) -> Client {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_attempt_timeout(ATTEMPT_TIMEOUT)
        .build();
    let config = aws_sdk_dynamodb::config::Builder::from(config)
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts)
        .build();
    Client::from_conf(config)
}
