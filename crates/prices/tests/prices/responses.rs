//! The usage in responses of every provider.

use serde_json::Value;
use sluicegate_prices::{Usage, UsageReader};

use crate::samples::sample;

fn usage([input, output, cached_input, cache_write]: [u64; 4]) -> Option<Usage> {
    Some(Usage { input, output, cached_input, cache_write })
}

#[test]
fn usage_is_read_from_every_response() {
    for (name, expected) in [
        ("openai-chat.json", [86, 300, 1_920, 0]),
        ("openai-embeddings.json", [8, 0, 0, 0]),
        ("openai-responses.json", [200, 87, 2_000, 400]),
        ("anthropic-messages.json", [50, 503, 100_000, 248]),
        ("bedrock-invoke-anthropic.json", [14, 6, 0, 0]),
        ("bedrock-converse.json", [125, 60, 1_024, 1_024]),
    ] {
        assert_eq!(Usage::from_response(&sample(name)).unwrap(), usage(expected), "{name}");
    }
}

#[test]
fn usage_is_read_from_every_stream() {
    for (name, expected) in [
        ("openai-chat.sse", [93, 46, 1_024, 0]),
        ("openai-responses.sse", [57, 11, 1_280, 0]),
        ("anthropic-messages.sse", [11, 89, 5_120, 2_051]),
    ] {
        let stream = String::from_utf8(sample(name)).unwrap();
        for stream in [stream.replace('\n', "\r\n"), stream] {
            let mut reader = UsageReader::default();
            reader.push(stream.as_bytes());
            assert_eq!(reader.usage(), usage(expected), "{name}");
        }
    }
}

#[test]
fn usage_of_a_stream_that_breaks_off_is_that_of_its_events() {
    let stream = String::from_utf8(sample("anthropic-messages.sse")).unwrap();
    let mut reader = UsageReader::default();
    reader.push(&stream.as_bytes()[..stream.find("event: message_delta").unwrap()]);
    assert_eq!(reader.usage(), usage([11, 1, 5_120, 2_051]));
    assert!(!reader.is_complete(), "its one output token is not the last");
    reader.push(&stream.as_bytes()[stream.find("event: message_delta").unwrap()..]);
    assert!(reader.is_complete());
}

#[test]
fn usage_is_read_from_events_of_converse_stream() {
    let events: Value = serde_json::from_slice(&sample("bedrock-converse-stream.json")).unwrap();
    let mut reader = UsageReader::default();
    let (last, first) = events.as_array().unwrap().split_last().unwrap();
    first.iter().for_each(|event| reader.push_event(event));
    assert_eq!(reader.usage(), None);
    reader.push_event(last);
    assert_eq!(reader.usage(), usage([47, 20, 2_048, 0]));
    // On the wire, the name of an event stands in a header, and its body is bare.
    let mut bare = UsageReader::default();
    bare.push_event(&last["metadata"]);
    assert_eq!(bare.usage(), reader.usage());
}
