//! The callers of a server, by their bearer tokens.

use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};

use crate::config::{Caller, Role, TokenHash};

/// The callers that the configuration names.
pub(crate) struct Callers {
    /// Empty: everyone may do everything.
    known: Vec<Caller>,
}

/// The reason why a request goes no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No token, or an unknown one.
    Unknown,
    /// The caller does not have the role.
    Role,
}

impl Denied {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Unknown => StatusCode::UNAUTHORIZED,
            Self::Role => StatusCode::FORBIDDEN,
        }
    }
}

impl Callers {
    pub(crate) fn new(known: Vec<Caller>) -> Self {
        Self { known }
    }

    /// Returns the caller's name if its token is known and it has `role`. The hash of the token is
    /// compared in constant time.
    ///
    /// # Errors
    /// [`Denied`].
    pub(crate) fn authorize(&self, headers: &HeaderMap, role: Role) -> Result<&str, Denied> {
        if self.known.is_empty() {
            return Ok("anyone");
        }
        let hash = TokenHash::of(bearer(headers).ok_or(Denied::Unknown)?);
        let caller = self.known.iter().rfind(|caller| caller.sha256.is(&hash));
        let caller = caller.ok_or(Denied::Unknown)?;
        if caller.roles.contains(&role) { Ok(&caller.name) } else { Err(Denied::Role) }
    }
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
        Callers::new(vec![gateway, admin])
    }

    fn asked(authorization: &str, role: Role) -> Result<String, Denied> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, authorization.parse().unwrap());
        callers().authorize(&headers, role).map(str::to_owned)
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
        assert_eq!(callers().authorize(&HeaderMap::new(), Role::Read), Err(Denied::Unknown));
    }

    #[test]
    fn without_callers_everyone_is_one() {
        let callers = Callers::new(Vec::new());
        assert!(callers.authorize(&HeaderMap::new(), Role::Operate).is_ok());
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
