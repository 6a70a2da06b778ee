//! JSON pointers, which name settings.

/// A key in a JSON pointer.
pub(super) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// The key of a part of a JSON pointer.
pub(super) fn unescaped(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}

/// A JSON pointer as people write it: `callers[1].sha256`.
pub(super) fn shown(pointer: &str) -> String {
    let mut path = String::new();
    for part in pointer.split('/').skip(1) {
        let part = unescaped(part);
        if part.bytes().all(|byte| byte.is_ascii_digit()) && !part.is_empty() {
            path = format!("{path}[{part}]");
        } else {
            let dot = if path.is_empty() { "" } else { "." };
            path = format!("{path}{dot}{part}");
        }
    }
    path
}
