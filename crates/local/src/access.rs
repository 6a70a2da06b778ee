//! Decides which HTTP requests the engine answers: those of programs on this machine, none of web
//! pages.
//!
//! Every page that a browser on this machine shows can reach a port on loopback. Such a request
//! names the page in `Origin`. Or, if the page's own name resolves to 127.0.0.1 (DNS rebinding), it
//! has that name in `Host`. Programs send no `Origin` and name a loopback address.

use hyper::Uri;
use hyper::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::http::uri::Authority;

/// The reason why this request is not answered, in one line for its sender.
pub(crate) fn refusal(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    if let Some(origin) = text(headers, &ORIGIN) {
        return Some(format!(
            "a web page ({origin:?}) asked: this engine answers programs on this machine only"
        ));
    }
    let host = text(headers, &HOST).unwrap_or_default();
    let target = uri.authority().map(Authority::as_str);
    let foreign = [Some(host.as_str()), target].into_iter().flatten().find(|name| {
        let authority = name.parse::<Authority>();
        !authority.is_ok_and(|authority| is_loopback_host(authority.host()))
    })?;
    Some(format!(
        "the host {foreign:?} is not this machine: name 127.0.0.1, [::1] or localhost in the endpoint's URL"
    ))
}

/// True if a URL's host names this machine without a resolver: `localhost`, or a loopback address,
/// an IPv6 one in brackets.
#[must_use]
pub fn is_loopback(url: &str) -> bool {
    url.parse::<Uri>().is_ok_and(|url| url.host().is_some_and(is_loopback_host))
}

fn is_loopback_host(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || address.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// The header as text; several headers of one name, or invalid bytes, become a text that names no
/// host.
fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let values: Vec<_> = headers.get_all(name).iter().map(|value| value.as_bytes()).collect();
    (!values.is_empty()).then(|| String::from_utf8_lossy(&values.join(&b"\n"[..])).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_answered(uri: &str, headers: &[(&'static str, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        refusal(&uri.parse().unwrap(), &map).is_none()
    }

    #[test]
    fn hosts_are_loopback_or_foreign() {
        for host in ["localhost:8000", "LOCALHOST", "127.0.0.1:1", "127.8.0.1", "[::1]:8000"] {
            assert!(is_answered("/", &[("host", host)]), "{host}");
        }
        for host in [
            "",
            "attacker.example",
            "attacker.example:8000",
            "localhost.attacker.example",
            "127.0.0.1.attacker.example",
            "127.0.0.1@attacker.example",
            "10.0.0.1",
            "0.0.0.0",
            "[::]",
            "::1",
            "localhost ",
        ] {
            assert!(!is_answered("/", &[("host", host)]), "{host:?}");
        }
        assert!(!is_answered("/", &[]), "no host");
        assert!(!is_answered("/", &[("host", "localhost"), ("host", "attacker.example")]));
    }

    #[test]
    fn both_names_of_an_absolute_target_count() {
        assert!(is_answered("http://127.0.0.1/", &[("host", "localhost")]));
        assert!(!is_answered("http://attacker.example/", &[("host", "localhost")]));
        assert!(!is_answered("http://127.0.0.1/", &[("host", "attacker.example")]));
    }

    #[test]
    fn no_web_page_is_answered() {
        for origin in ["https://attacker.example", "null", "http://localhost:3000"] {
            assert!(!is_answered("/", &[("host", "localhost"), ("origin", origin)]), "{origin}");
        }
    }
}
