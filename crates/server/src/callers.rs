//! The callers of a server, by their bearer tokens.

use std::net::IpAddr;

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, HeaderValue, Request, Version};

use crate::config::{Caller, Role, TokenHash};

/// The callers that the configuration names.
pub(crate) struct Callers {
    /// Empty: every program on this machine may do everything.
    known: Vec<Caller>,
    /// True: so may everyone else.
    is_open: bool,
}

/// The reason why a request goes no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No token, or an unknown one.
    Unknown,
    /// The caller does not have the role.
    Role,
    /// A browser asks for a web page, which may be anyone's.
    WebPage,
}

impl Callers {
    pub(crate) fn new(known: Vec<Caller>, is_open: bool) -> Self {
        Self { known, is_open }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns the caller's name if its token is known and it has `role`. The hash of the token is
    /// compared in constant time.
    ///
    /// # Errors
    /// [`Denied`].
    pub(crate) fn authorize<B>(&self, request: &Request<B>, role: Role) -> Result<&str, Denied> {
        if self.known.is_empty() {
            let is_denied = !self.is_open && may_be_of_web_page(request);
            return if is_denied { Err(Denied::WebPage) } else { Ok("anyone") };
        }
        let hash = TokenHash::of(bearer(request.headers()).ok_or(Denied::Unknown)?);
        let caller = self.known.iter().rfind(|caller| caller.sha256.is(&hash));
        let caller = caller.ok_or(Denied::Unknown)?;
        if caller.roles.contains(&role) { Ok(&caller.name) } else { Err(Denied::Role) }
    }
}

/// True if a browser on this machine may have sent the request for a page of any site. It names the
/// page in `Origin`. Or, if the page's own name resolves to this machine (DNS rebinding), it has that
/// name in `Host`; browsers speak HTTP/1 to such a server. Programs send no `Origin`, and name a loopback
/// address.
fn may_be_of_web_page<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    let is_http1 = request.version() <= Version::HTTP_11;
    headers.contains_key(ORIGIN)
        || (is_http1 && !headers.get_all(HOST).iter().all(names_this_machine))
}

fn names_this_machine(host: &HeaderValue) -> bool {
    let Ok(host) = host.to_str() else { return false };
    let host = match host.strip_prefix('[') {
        Some(address) => address.split(']').next(),
        None => host.split(':').next(),
    };
    host.is_some_and(|host| {
        let address = host.parse::<IpAddr>();
        host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
    })
}

/// The token of the header `Authorization: Bearer TOKEN`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn callers() -> Callers {
        let caller = |name: &str, token: &str, roles: &[Role]| {
            let sha256 = TokenHash::of(token.as_bytes());
            Caller { name: name.to_owned(), sha256, roles: roles.to_vec() }
        };
        let gateway = caller("gateway", "s3cret", &[Role::Acquire]);
        let admin = caller("admin", "other", &[Role::Read, Role::Operate]);
        Callers::new(vec![gateway, admin], false)
    }

    fn asked(authorization: &str, role: Role) -> Result<String, Denied> {
        let request = Request::builder().header(AUTHORIZATION, authorization).body(()).unwrap();
        callers().authorize(&request, role).map(str::to_owned)
    }

    #[test]
    fn a_caller_has_its_roles_and_no_other() {
        assert_eq!(asked("Bearer s3cret", Role::Acquire).as_deref(), Ok("gateway"));
        assert_eq!(asked("bearer  s3cret ", Role::Acquire).as_deref(), Ok("gateway"));
        assert_eq!(asked("Bearer other", Role::Operate).as_deref(), Ok("admin"));
        assert_eq!(asked("Bearer s3cret", Role::Operate), Err(Denied::Role));
        assert_eq!(asked("Bearer other", Role::Acquire), Err(Denied::Role));
    }

    #[test]
    fn no_other_token_is_anyone() {
        for authorization in
            ["Bearer s3cre", "Bearer S3CRET", "Bearer ", "Bearer", "Basic s3cret", ""]
        {
            assert_eq!(
                asked(authorization, Role::Acquire),
                Err(Denied::Unknown),
                "{authorization}"
            );
        }
        assert_eq!(callers().authorize(&Request::new(()), Role::Read), Err(Denied::Unknown));
    }

    #[test]
    fn without_callers_every_program_is_one_and_no_web_page() {
        let (local, open) = (Callers::new(Vec::new(), false), Callers::new(Vec::new(), true));
        for (name, value, is_program) in [
            ("host", "127.0.0.1:8470", true),
            ("host", "[::1]:8470", true),
            ("host", "LocalHost", true),
            ("host", "example.com:8470", false),
            ("host", "127.0.0.1.example.com", false),
            ("host", "\u{fc}", false),
            ("origin", "http://127.0.0.1:8470", false),
            ("origin", "null", false),
        ] {
            let request = Request::builder().header(name, value).body(()).unwrap();
            let asked = local.authorize(&request, Role::Operate);
            assert_eq!(asked.is_ok(), is_program, "{name}: {value}");
            assert!(open.authorize(&request, Role::Operate).is_ok());
        }
        // Envoy's authority is the name of its cluster.
        let envoy =
            Request::builder().version(Version::HTTP_2).uri("http://limits/").body(()).unwrap();
        assert!(local.authorize(&envoy, Role::Acquire).is_ok());
    }

    #[test]
    fn a_broken_hash_is_refused() {
        let of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        for sha256 in [String::new(), "z".repeat(64), "a".repeat(63), of_nothing.to_owned()] {
            assert!(TokenHash::try_from(sha256).is_err());
        }
        let hash = "9F86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".to_owned();
        assert_eq!(TokenHash::try_from(hash), Ok(TokenHash::of(b"test")));
    }
}
