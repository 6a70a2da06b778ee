//! Sends alerts to an HTTP endpoint, signed as [Standard
//! Webhooks](https://www.standardwebhooks.com) says: a receiver verifies the headers `webhook-id`,
//! `webhook-timestamp` and `webhook-signature` with any library of that standard.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use sha2::Sha256;

use crate::cloud_event::Event;
use crate::invalid_destination::InvalidDestination;
use crate::write_error::chain;

/// The time for one delivery.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A secret with fewer bytes could be guessed.
const SECRET_BYTES_MIN: usize = 16;
/// The usual prefix of a secret.
const SECRET_PREFIX: &str = "whsec_";

/// An endpoint that alerts are posted to.
#[derive(Clone)]
pub(crate) struct Webhook {
    url: Uri,
    key: Hmac<Sha256>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Webhook {
    /// An endpoint at `url`. The secret is that of the signatures: base64, with or without `whsec_`
    /// before it.
    pub(crate) fn new(url: &str, secret: &str) -> Result<Self, InvalidDestination> {
        let unknown = || InvalidDestination::Url;
        let url: Uri = url.parse().map_err(|_| unknown())?;
        let host = url.host().ok_or_else(unknown)?;
        let is_loopback = matches!(host, "127.0.0.1" | "localhost" | "[::1]");
        match url.scheme_str() {
            Some("https") => {}
            Some("http") if is_loopback => {}
            Some(_) => return Err(InvalidDestination::Unencrypted),
            None => return Err(unknown()),
        }
        let secret = secret.trim();
        let secret = BASE64_STANDARD.decode(secret.strip_prefix(SECRET_PREFIX).unwrap_or(secret));
        let secret = secret.ok().filter(|secret| secret.len() >= SECRET_BYTES_MIN);
        let secret = secret.ok_or(InvalidDestination::Secret)?;
        let key = Hmac::new_from_slice(&secret).map_err(|_| InvalidDestination::Secret)?;
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(tokio_rustls::rustls::crypto::ring::default_provider())?
            .https_or_http()
            .enable_http1()
            .build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { url, key, client })
    }

    /// Posts an event. Any answer but 2xx is a failure; its reason is one line.
    pub(crate) async fn send(&self, Event { id, body, .. }: Event) -> Result<(), String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let request = Request::post(&self.url)
            .header("content-type", "application/cloudevents+json; charset=utf-8")
            .header("webhook-id", &id)
            .header("webhook-timestamp", now)
            .header("webhook-signature", self.signature(&id, now, &body))
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| error.to_string())?;
        match tokio::time::timeout(TIMEOUT, self.client.request(request)).await {
            Err(_) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
            Ok(Err(error)) => Err(chain(&error)),
            Ok(Ok(answer)) if answer.status().is_success() => Ok(()),
            Ok(Ok(answer)) => Err(format!("HTTP {}", answer.status())),
        }
    }

    fn signature(&self, id: &str, now_s: u64, body: &str) -> String {
        let mut mac = self.key.clone();
        mac.update(format!("{id}.{now_s}.{body}").as_bytes());
        format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// Without the secret.
impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The path of a URL may be a credential.
        f.debug_struct("Webhook").field("host", &self.url.host()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    /// The example of the specification.
    #[test]
    fn signatures_are_those_of_standard_webhooks() {
        let webhook = Webhook::new("https://example.com/alerts", SECRET).unwrap();
        let body = "{\"test\": 2432232314}";
        let signature = webhook.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
