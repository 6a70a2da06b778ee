//! Properties of the readers of bytes that others send.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use sluicegate_prices::{Usage, UsageReader};

use crate::samples::{STREAMS, sample};

fn usage_of(pieces: &[&[u8]]) -> Option<Usage> {
    let mut reader = UsageReader::default();
    pieces.iter().for_each(|piece| reader.push(piece));
    reader.usage()
}

proptest! {
    #[test]
    fn streams_split_anywhere_have_the_same_usage(
        name in select(&STREAMS[..]),
        crlf in any::<bool>(),
        cuts in vec(any::<Index>(), 0..8),
    ) {
        let mut stream = sample(name);
        if crlf {
            stream = String::from_utf8(stream).unwrap().replace('\n', "\r\n").into_bytes();
        }
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
        prop_assert!(usage_of(&pieces).is_some());
        prop_assert_eq!(usage_of(&pieces), usage_of(&[&stream]));
    }

    #[test]
    fn bytes_of_any_kind_do_not_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = Usage::from_response(&bytes);
        usage_of(&[&bytes]);
        usage_of(&[b"data:", &bytes, b"\n"]);
    }

    #[test]
    fn damaged_responses_do_not_panic(
        at in any::<Index>(),
        byte in any::<u8>(),
        stream in select(&STREAMS[..]),
    ) {
        let damaged = |mut bytes: Vec<u8>| {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes
        };
        usage_of(&[&damaged(sample(stream))]);
        let _ = Usage::from_response(&damaged(sample("openai-responses.json")));
    }
}

#[test]
fn streams_of_single_bytes_have_the_same_usage() {
    for name in STREAMS {
        let stream = sample(name);
        let bytes: Vec<_> = stream.chunks(1).collect();
        assert_eq!(usage_of(&bytes), usage_of(&[&stream]), "{name}");
    }
}
