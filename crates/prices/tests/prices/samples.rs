//! The sample responses.

use std::fs;
use std::path::Path;

/// The streams among them.
pub(crate) const STREAMS: [&str; 3] =
    ["openai-chat.sse", "openai-responses.sse", "anthropic-messages.sse"];

pub(crate) fn sample(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples");
    fs::read(folder.join(name)).unwrap()
}
