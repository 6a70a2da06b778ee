//! The callers of a server, by their bearer tokens.

use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::config::{Caller, Role};

/// The callers that the configuration names.
pub(crate) struct Callers {
    /// Empty: everyone may do everything.
    known: Vec<Known>,
}

struct Known {
    name: String,
    token_sha256: [u8; 32],
    roles: Vec<Role>,
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
    /// `None`: the hash of a token is not 64 hexadecimal digits.
    pub(crate) fn new(callers: &[Caller]) -> Option<Self> {
        let known = |caller: &Caller| {
            let (name, roles) = (caller.name.clone(), caller.roles.clone());
            Some(Known { name, token_sha256: from_hex(&caller.sha256)?, roles })
        };
        callers.iter().map(known).collect::<Option<_>>().map(|known| Self { known })
    }

    /// The name of the caller of a request, who needs `role`.
    ///
    /// # Errors
    /// [`Denied`]. The hash of the token is compared in constant time.
    pub(crate) fn authorize(&self, headers: &HeaderMap, role: Role) -> Result<&str, Denied> {
        if self.known.is_empty() {
            return Ok("anyone");
        }
        let hash: [u8; 32] = Sha256::digest(bearer(headers).ok_or(Denied::Unknown)?).into();
        let same = |caller: &&Known| bool::from(caller.token_sha256.ct_eq(&hash));
        let caller = self.known.iter().rfind(same).ok_or(Denied::Unknown)?;
        if caller.roles.contains(&role) { Ok(&caller.name) } else { Err(Denied::Role) }
    }
}

/// The token of the header `Authorization: Bearer TOKEN`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (n, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * n..2 * n + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn callers() -> Callers {
        let caller = |name: &str, token: &str, roles: &[Role]| {
            let sha256 = Sha256::digest(token).iter().map(|byte| format!("{byte:02X}")).collect();
            Caller { name: name.to_owned(), sha256, roles: roles.to_vec() }
        };
        let gateway = caller("gateway", "s3cret", &[Role::Acquire]);
        let admin = caller("admin", "other", &[Role::Read, Role::Operate]);
        Callers::new(&[gateway, admin]).unwrap()
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
        let callers = Callers::new(&[]).unwrap();
        assert!(callers.authorize(&HeaderMap::new(), Role::Operate).is_ok());
    }

    #[test]
    fn a_broken_hash_is_refused() {
        for sha256 in [String::new(), "z".repeat(64), "a".repeat(63)] {
            assert!(
                Callers::new(&[Caller { name: String::new(), sha256, roles: vec![] }]).is_none()
            );
        }
    }
}
