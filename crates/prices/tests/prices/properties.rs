//! Properties of costs, and of readers of bytes that others send.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use sluicegate_core::fixtures::at;
use sluicegate_prices::{PriceBook, Usage, UsageReader};

use crate::samples::{STREAMS, sample};

/// Picounits per million tokens, in the order of the fields: 10^-18 of the unit per token.
type AttosPerToken = [u64; 4];

fn book(prices: AttosPerToken, per_request: u64) -> PriceBook {
    let [input, output, cached_input, cache_write] = prices.map(|price| format!("{price}e-12"));
    let json = format!(
        r#"{{"currency": "USD", "models": {{"m": [{{"from": "2026-01-01", "input": {input},
            "output": {output}, "cached_input": {cached_input}, "cache_write": {cache_write},
            "per_request": {per_request}e-18}}]}}}}"#
    );
    PriceBook::from_json(&json).unwrap()
}

fn usage() -> impl Strategy<Value = Usage> {
    let tokens = || prop_oneof![Just(0), 1..10_u64, 0..1_000_000_000_000_u64];
    (tokens(), tokens(), tokens(), tokens()).prop_map(
        |(input, output, cached_input, cache_write)| Usage {
            input,
            output,
            cached_input,
            cache_write,
        },
    )
}

fn usage_of(pieces: &[&[u8]]) -> Option<Usage> {
    let mut reader = UsageReader::default();
    pieces.iter().for_each(|piece| reader.push(piece));
    reader.usage()
}

proptest! {
    #[test]
    fn costs_of_requests_are_the_exact_sum_and_less_than_a_nano_each(
        prices in any::<AttosPerToken>(),
        per_request in any::<u64>(),
        usages in vec(usage(), 1..20),
    ) {
        let (book, now) = (book(prices, per_request), at(1_769_608_800_000));
        let exact_attos = usages.iter().map(|usage| {
            let counts = [usage.input, usage.output, usage.cached_input, usage.cache_write];
            let tokens = counts.into_iter().zip(prices);
            let products = tokens.map(|(count, price)| i128::from(count) * i128::from(price));
            products.sum::<i128>() + i128::from(per_request)
        });
        let exact_attos: i128 = exact_attos.sum();
        let costs = usages.iter().map(|usage| book.cost("m", usage, now).unwrap().nanos());
        let more_attos = costs.sum::<i128>() * 1_000_000_000 - exact_attos;
        let requests = i128::try_from(usages.len()).unwrap();
        prop_assert!((0..requests * 1_000_000_000).contains(&more_attos), "{more_attos}");
    }

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
    fn bytes_of_any_kind_do_not_panic(bytes in vec(any::<u8>(), 0..200), text in ".*") {
        let _ = Usage::from_response(&bytes);
        usage_of(&[&bytes]);
        usage_of(&[b"data:", &bytes, b"\n"]);
        let _ = (PriceBook::from_json(&text), PriceBook::from_litellm(&text));
    }

    #[test]
    fn damaged_responses_and_lists_do_not_panic(
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
        let list = br#"{"currency":"USD","models":{"m":[{"from":"2026-01-01","input":1e-2,"output":"3"}]}}"#;
        let _ = PriceBook::from_json(&String::from_utf8_lossy(&damaged(list.to_vec())));
        let list = br#"{"m":{"input_cost_per_token":2.5e-06,"output_cost_per_token":1e-05}}"#;
        let _ = PriceBook::from_litellm(&String::from_utf8_lossy(&damaged(list.to_vec())));
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
