//! Sends alerts to an HTTP endpoint, signed as [Standard Webhooks](https://www.standardwebhooks.com)
//! says: a receiver verifies the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`
//! with any of its libraries.

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

use crate::settings::SettingsError;
use crate::write_error::chain;

/// The time for one delivery.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after the first failed delivery.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// The pause doubles with each failure, this often: an hour at most.
const DOUBLINGS_MAX: u32 = 6;
/// A secret with fewer bytes could be guessed.
const SECRET_BYTES_MIN: usize = 16;
/// Begins a secret in its usual spelling.
const SECRET_PREFIX: &str = "whsec_";

/// An endpoint that alerts are posted to.
#[derive(Clone)]
pub struct Webhook {
    url: Uri,
    key: Hmac<Sha256>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    first_pause: Duration,
}

/// An endpoint that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidWebhook {
    /// The URL is none, or alerts would travel unencrypted.
    #[error("the URL for alerts is not an https:// URL: only a host on loopback may be http://")]
    Url,
    /// The secret is not base64, or too short.
    #[error(
        "the secret for alerts is not whsec_ and the base64 of at least {SECRET_BYTES_MIN} bytes: make one with `openssl rand -base64 32`"
    )]
    Secret,
    /// The certificates of this machine cannot be read.
    #[error("the root certificates of this machine cannot be read: {0}")]
    Certificates(#[from] std::io::Error),
}

impl Webhook {
    /// An endpoint at `url`. The secret is that of the signatures: base64, with or without `whsec_`
    /// before it.
    ///
    /// # Errors
    /// [`InvalidWebhook`].
    pub fn new(url: &str, secret: &str) -> Result<Self, InvalidWebhook> {
        let url: Uri = url.trim().parse().map_err(|_| InvalidWebhook::Url)?;
        let host = url.host().ok_or(InvalidWebhook::Url)?;
        let is_loopback = matches!(host, "127.0.0.1" | "localhost" | "[::1]");
        match url.scheme_str() {
            Some("https") => {}
            Some("http") if is_loopback => {}
            _ => return Err(InvalidWebhook::Url),
        }
        let secret = secret.trim();
        let secret = BASE64_STANDARD.decode(secret.strip_prefix(SECRET_PREFIX).unwrap_or(secret));
        let secret = secret.ok().filter(|secret| secret.len() >= SECRET_BYTES_MIN);
        let secret = secret.ok_or(InvalidWebhook::Secret)?;
        let key = Hmac::new_from_slice(&secret).map_err(|_| InvalidWebhook::Secret)?;
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(tokio_rustls::rustls::crypto::ring::default_provider())?
            .https_or_http()
            .enable_http1()
            .build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { url, key, client, first_pause: FIRST_PAUSE })
    }

    /// Reads `ALERTS_URL` and `ALERTS_SECRET` through `get`; none if there is no URL. An empty value
    /// counts as not set.
    ///
    /// # Errors
    /// [`SettingsError::Webhook`].
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, SettingsError> {
        let get = |name| get(name).filter(|value| !value.trim().is_empty());
        let Some(url) = get("ALERTS_URL") else { return Ok(None) };
        let webhook = Self::new(&url, &get("ALERTS_SECRET").unwrap_or_default());
        webhook.map(Some).map_err(|error| SettingsError::Webhook(error.to_string()))
    }

    /// Sets the pause after the first failed delivery, a minute by default. It doubles with each
    /// further failure, up to 64 times its length.
    #[must_use]
    pub const fn first_pause(mut self, pause: Duration) -> Self {
        self.first_pause = pause;
        self
    }

    /// The pause after so many failed deliveries, at least one.
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        self.first_pause * 2_u32.pow(failures.saturating_sub(1).min(DOUBLINGS_MAX))
    }

    /// Posts an event. Any answer but 2xx is a failure; its reason is one line.
    pub(crate) async fn send(&self, id: &str, body: String) -> Result<(), String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let request = Request::post(&self.url)
            .header("content-type", "application/cloudevents+json; charset=utf-8")
            .header("webhook-id", id)
            .header("webhook-timestamp", now)
            .header("webhook-signature", self.signature(id, now, &body))
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
        f.debug_struct("Webhook").field("url", &self.url).finish_non_exhaustive()
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

    #[test]
    fn alerts_travel_encrypted_and_signed() {
        for url in ["http://example.com", "example.com", "ftp://example.com", "https://", ""] {
            assert!(matches!(Webhook::new(url, SECRET), Err(InvalidWebhook::Url)), "{url}");
        }
        for secret in ["", "whsec_", "whsec_c2hvcnQ=", "not base64 but long enough"] {
            let refused = Webhook::new("https://example.com", secret);
            assert!(matches!(refused, Err(InvalidWebhook::Secret)), "{secret}");
        }
        assert!(Webhook::new("http://127.0.0.1:8080/x", SECRET).is_ok());
    }

    #[test]
    fn pauses_double_up_to_an_hour() {
        let webhook = Webhook::new("https://example.com", SECRET).unwrap();
        let pauses = [1, 2, 7, 100].map(|failures| webhook.pause(failures).as_secs());
        assert_eq!(pauses, [60, 120, 3_840, 3_840]);
    }
}
