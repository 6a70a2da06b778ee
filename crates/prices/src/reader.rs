//! The usage of a response that is streamed as server-sent events.
//!
//! The reader takes bytes as they arrive and keeps at most one line of them. It never fails: a line
//! that is not an event with token counts changes nothing.

use serde_json::Value;

use crate::Usage;
use crate::response::Counts;

/// Longest line that is read, in bytes.
const LINE_MAX: usize = 1 << 20;

/// Reads the usage of a streamed response: OpenAI chat completions (with
/// `stream_options.include_usage`) and responses, Anthropic messages, and ConverseStream of Amazon
/// Bedrock.
///
/// Providers repeat counts while they stream. The newest value of each count is taken. A line of
/// more than 1 MiB is skipped.
///
/// ```
/// use sluicegate_prices::{Usage, UsageReader};
///
/// let mut reader = UsageReader::default();
/// reader.push(b"data: {\"usage\": {\"prompt_tokens\": 9, \"comple");
/// assert_eq!(reader.usage(), None);
/// reader.push(b"tion_tokens\": 3}}\n\ndata: [DONE]\n\n");
/// assert_eq!(reader.usage(), Some(Usage { input: 9, output: 3, ..Usage::default() }));
/// ```
#[derive(Debug, Clone, Default)]
pub struct UsageReader {
    counts: Counts,
    /// The line so far.
    line: Vec<u8>,
    /// True if the line so far was longer than [`LINE_MAX`] and is dropped to its end.
    skips: bool,
}

impl UsageReader {
    /// Reads the next bytes of the stream. They may start and end anywhere.
    pub fn push(&mut self, bytes: &[u8]) {
        // A line ends with a line feed, a carriage return, or both; an empty line is no event.
        let mut pieces = bytes.split(|byte| matches!(byte, b'\n' | b'\r'));
        let last = pieces.next_back().unwrap_or_default();
        for piece in pieces {
            self.extend_line(piece);
            self.end_line();
        }
        self.extend_line(last);
    }

    /// Reads an event that is parsed already, such as one of ConverseStream. An event whose counts
    /// are not numbers is ignored.
    pub fn push_event(&mut self, event: &Value) {
        if let Ok(counts) = Counts::read(event) {
            self.counts.update(counts);
        }
    }

    /// The usage so far; `None` if no event had token counts.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.counts.usage()
    }

    /// True if the usage is that of the whole answer. Anthropic's first event has the input, and an
    /// output of about one token: if the stream breaks off after it, the actual output is not known.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.counts.is_complete()
    }

    fn extend_line(&mut self, piece: &[u8]) {
        self.skips |= self.line.len() + piece.len() > LINE_MAX;
        if self.skips {
            self.line = Vec::new();
        } else {
            self.line.extend_from_slice(piece);
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let is_whole = !std::mem::take(&mut self.skips);
        if let (true, Some(data)) = (is_whole, line.strip_prefix(b"data:"))
            && let Ok(event) = serde_json::from_slice(data)
        {
            self.push_event(&event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn usage_of(stream: &str) -> Option<Usage> {
        let mut reader = UsageReader::default();
        reader.push(stream.as_bytes());
        reader.usage()
    }

    fn output(output: u64) -> Option<Usage> {
        Some(Usage { output, ..Usage::default() })
    }

    #[test]
    fn lines_end_in_every_way_and_need_no_space() {
        for end in ["\n", "\r\n", "\r", "\n\n", "\r\n\r\n"] {
            for space in ["", " "] {
                let stream = format!("data:{space}{{\"usage\":{{\"output_tokens\":5}}}}{end}");
                assert_eq!(usage_of(&stream), output(5), "{stream:?}");
            }
        }
    }

    #[test]
    fn lines_without_counts_change_nothing() {
        let first = "data: {\"usage\": {\"output_tokens\": 5}}\n";
        for line in [
            "data: [DONE]",
            ": a comment",
            "data: {\"usage\": null}",
            "data: {\"usage\": {\"output_tokens\": \"many\"}}",
            "data: {\"usage\": {\"output_tokens\": 7}",
            "event: {\"usage\": {\"output_tokens\": 7}}",
        ] {
            assert_eq!(usage_of(&format!("{first}{line}\n")), output(5), "{line}");
        }
    }

    #[test]
    fn counts_that_are_sent_again_replace_the_older() {
        let mut reader = UsageReader::default();
        reader.push_event(&json!({"message": {"usage": {"input_tokens": 8, "output_tokens": 1}}}));
        reader.push_event(&json!({"usage": {"output_tokens": 40}}));
        assert_eq!(reader.usage(), Some(Usage { input: 8, output: 40, ..Usage::default() }));
    }

    #[test]
    fn lines_beyond_the_limit_are_skipped_to_their_end() {
        let event = "data: {\"usage\": {\"output_tokens\": 5}}";
        let line = |len: usize| format!("{event}{}\n", " ".repeat(len - event.len()));
        assert_eq!(usage_of(&line(LINE_MAX)), output(5));
        assert_eq!(usage_of(&line(LINE_MAX + 1)), None);
        assert_eq!(usage_of(&format!("{}{event}\n", line(LINE_MAX + 1))), output(5));

        let mut reader = UsageReader::default();
        reader.push(&vec![b'x'; LINE_MAX + 1]);
        // The rest of the line, which looks like an event.
        reader.push(event.as_bytes());
        reader.push(b"\n");
        assert_eq!(reader.usage(), None);
        reader.push(event.as_bytes());
        reader.push(b"\n");
        assert_eq!(reader.usage(), output(5));
    }

    #[test]
    fn lines_without_an_end_take_bounded_memory() {
        let mut reader = UsageReader::default();
        for _ in 0..3 * LINE_MAX / 1_000 {
            reader.push(&[b'x'; 1_000]);
            assert!(reader.line.capacity() <= 2 * LINE_MAX);
        }
    }
}
