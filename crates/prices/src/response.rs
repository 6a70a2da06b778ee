//! The usage in the response to a request, in the spellings of all providers.
//!
//! OpenAI counts cached and cache-write tokens as a part of the input. Anthropic and Amazon Bedrock
//! count them apart. [`Counts`] keeps each count as it was sent; [`Counts::usage`] subtracts the part.

use serde_json::Value;

use crate::Usage;

const INPUT: [&str; 3] = ["/prompt_tokens", "/input_tokens", "/inputTokens"];
const OUTPUT: [&str; 3] = ["/completion_tokens", "/output_tokens", "/outputTokens"];
const CACHED: [&str; 4] = [
    "/prompt_tokens_details/cached_tokens",
    "/input_tokens_details/cached_tokens",
    "/cache_read_input_tokens",
    "/cacheReadInputTokens",
];
const CACHE_WRITE: [&str; 4] = [
    "/prompt_tokens_details/cache_write_tokens",
    "/input_tokens_details/cache_write_tokens",
    "/cache_creation_input_tokens",
    "/cacheWriteInputTokens",
];
/// Only OpenAI sends one of these.
const OPENAI: [&str; 3] = ["prompt_tokens", "prompt_tokens_details", "input_tokens_details"];
/// The objects of an event that can hold `usage`: of the Responses API, Anthropic, ConverseStream.
const WRAPPERS: [&str; 3] = ["response", MESSAGE, "metadata"];
/// Anthropic's, at the start of a stream.
const MESSAGE: &str = "message";

/// A response without readable token counts.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// The body is not JSON. [`UsageReader`](crate::UsageReader) reads the events of a stream.
    #[error("the response is not JSON: {0}; the events of a stream are read one by one")]
    NotJson(#[from] serde_json::Error),
    /// A field is not a whole number from 0 to 2^64-1.
    #[error("`{field}` in the usage of the response is not a token count")]
    NotACount {
        /// The path of the field in the `usage` object.
        field: &'static str,
    },
}

impl Usage {
    /// Reads the body of a response: OpenAI chat completions and responses, Anthropic messages
    /// (from Anthropic or by InvokeModel of Amazon Bedrock), and Converse of Amazon Bedrock. `None`:
    /// the body has no usage.
    ///
    /// OpenAI's input tokens include those of the cache; they are subtracted here. The input is zero
    /// if a response says that more tokens came from the cache than there were.
    ///
    /// # Errors
    /// [`UsageError`] if the body is not JSON or a count is not a number.
    ///
    /// ```
    /// use sluicegate_prices::Usage;
    ///
    /// let body = br#"{"usage": {"prompt_tokens": 1200, "completion_tokens": 80,
    ///                 "prompt_tokens_details": {"cached_tokens": 1024}}}"#;
    /// let usage = Usage { input: 176, output: 80, cached_input: 1024, cache_write: 0 };
    /// assert_eq!(Usage::from_response(body)?, Some(usage));
    /// # Ok::<(), sluicegate_prices::UsageError>(())
    /// ```
    pub fn from_response(body: &[u8]) -> Result<Option<Self>, UsageError> {
        let body: Value = serde_json::from_slice(body)?;
        Ok(Counts::read(&body)?.usage())
    }
}

/// The counts of one `usage` object, or of several that follow each other in a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    input: Option<u64>,
    output: Option<u64>,
    cached: Option<u64>,
    cache_write: Option<u64>,
    /// True if the input includes the cached and the cache-write tokens.
    input_is_total: bool,
    /// True if the newest counts are those of a message that begins.
    is_beginning: bool,
}

impl Counts {
    /// Reads a response, or an event of a stream. All counts are `None` if it has no `usage`.
    pub(crate) fn read(body: &Value) -> Result<Self, UsageError> {
        let wrapped = WRAPPERS.iter().filter_map(|name| body.get(name));
        let mut usages = std::iter::once(body).chain(wrapped).filter_map(|body| body.get("usage"));
        let Some(usage) = usages.next() else {
            return Ok(Self::default());
        };
        let in_message = body.get(MESSAGE).and_then(|message| message.get("usage"));
        let is_sent = |name: &&str| usage.get(name).is_some_and(|value| !value.is_null());
        Ok(Self {
            input: count(usage, &INPUT)?,
            output: count(usage, &OUTPUT)?,
            cached: count(usage, &CACHED)?,
            cache_write: count(usage, &CACHE_WRITE)?,
            input_is_total: OPENAI.iter().any(is_sent),
            is_beginning: in_message.is_some_and(|of_message| std::ptr::eq(of_message, usage)),
        })
    }

    /// Replaces each count that is sent again.
    pub(crate) fn update(&mut self, newer: Self) {
        self.input = newer.input.or(self.input);
        self.output = newer.output.or(self.output);
        self.cached = newer.cached.or(self.cached);
        self.cache_write = newer.cache_write.or(self.cache_write);
        self.input_is_total |= newer.input_is_total;
        if newer.usage().is_some() {
            self.is_beginning = newer.is_beginning;
        }
    }

    /// True if there are counts, and not only those of a message that begins.
    pub(crate) fn is_complete(self) -> bool {
        self.usage().is_some() && !self.is_beginning
    }

    /// The usage; `None` without any count. A count that was not sent is zero.
    pub(crate) fn usage(self) -> Option<Usage> {
        self.input.or(self.output).or(self.cached).or(self.cache_write)?;
        let count = Option::unwrap_or_default;
        let (cached_input, cache_write) = (count(self.cached), count(self.cache_write));
        let apart = if self.input_is_total { cached_input.saturating_add(cache_write) } else { 0 };
        let input = count(self.input).saturating_sub(apart);
        Some(Usage { input, output: count(self.output), cached_input, cache_write })
    }
}

/// The first of the fields that is sent.
fn count(usage: &Value, fields: &[&'static str]) -> Result<Option<u64>, UsageError> {
    let sent = |field: &&'static str| {
        usage.pointer(field).filter(|value| !value.is_null()).map(|value| (*field, value))
    };
    let Some((field, value)) = fields.iter().find_map(sent) else {
        return Ok(None);
    };
    value.as_u64().map(Some).ok_or(UsageError::NotACount { field: &field[1..] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(usage: &str) -> Result<Option<Usage>, UsageError> {
        Usage::from_response(format!(r#"{{"usage": {usage}}}"#).as_bytes())
    }

    #[test]
    fn bodies_without_counts_have_no_usage() {
        for body in ["{}", "[]", "7", r#"{"message": "overloaded"}"#] {
            assert_eq!(Usage::from_response(body.as_bytes()).unwrap(), None, "{body}");
        }
        for usage in ["null", "{}", r#""none""#, r#"{"prompt_tokens": null, "seconds": 3}"#] {
            assert_eq!(read(usage).unwrap(), None, "{usage}");
        }
    }

    #[test]
    fn null_details_are_as_absent_ones() {
        let usage = read(r#"{"prompt_tokens": 7, "prompt_tokens_details": null}"#).unwrap();
        assert_eq!(usage, Some(Usage { input: 7, ..Usage::default() }));
        let usage = r#"{"input_tokens": 7, "cache_read_input_tokens": 5,
                        "prompt_tokens": null, "input_tokens_details": null}"#;
        let expected = Usage { input: 7, cached_input: 5, ..Usage::default() };
        assert_eq!(read(usage).unwrap(), Some(expected));
    }

    #[test]
    fn cached_tokens_beyond_the_input_leave_no_input() {
        let usage = r#"{"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 9}}"#;
        assert_eq!(read(usage).unwrap(), Some(Usage { cached_input: 9, ..Usage::default() }));
    }

    #[test]
    fn input_total_of_a_proxy_includes_cache_writes() {
        // LiteLLM's proxy answers for Anthropic with both spellings.
        let usage = r#"{"prompt_tokens": 100, "cache_read_input_tokens": 60,
                        "cache_creation_input_tokens": 30,
                        "prompt_tokens_details": {"cached_tokens": 60}}"#;
        let expected = Usage { input: 10, output: 0, cached_input: 60, cache_write: 30 };
        assert_eq!(read(usage).unwrap(), Some(expected));
    }

    #[test]
    fn counts_that_are_no_numbers_are_errors_with_the_field() {
        for (usage, field) in [
            (r#"{"prompt_tokens": -1}"#, "prompt_tokens"),
            (r#"{"outputTokens": 1.5}"#, "outputTokens"),
            (
                r#"{"input_tokens": 5, "input_tokens_details": {"cached_tokens": "2"}}"#,
                "input_tokens_details/cached_tokens",
            ),
        ] {
            let error = read(usage).unwrap_err().to_string();
            let expected = format!("`{field}` in the usage of the response is not a token count");
            assert_eq!(error, expected);
        }
        assert!(matches!(Usage::from_response(b"data: {}"), Err(UsageError::NotJson(_))));
    }
}
