//! Fetches items by their keys for readers and for the conversion of the older layout, and asks again for
//! those that DynamoDB leaves out of an answer. The reads of an acquire are in `dynamo_table.rs`.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::KeysAndAttributes;
use sluicegate_core::keys::{PK, SK};

use super::item::Attributes;
use super::{ReadError, RequestError};
use crate::table::Consistency;

/// The most keys of one BatchGetItem.
pub(super) const KEYS_PER_READ: u16 = 100;
/// How often missing keys are asked for again without any result.
const FRUITLESS_ROUNDS: u32 = 5;
/// The pause before the first of them; it doubles. 1.5 s in all.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The items of at most 100 keys, in the order of the keys; deleted ones are left out.
pub(super) async fn in_order(
    client: &Client,
    table: &str,
    keys: Vec<Attributes>,
    consistency: Consistency,
) -> Result<Vec<Attributes>, ReadError> {
    let mut items = Vec::with_capacity(keys.len());
    let mut wanted = keys.clone();
    let mut fruitless = 0;
    while !wanted.is_empty() {
        let answer = fetch_once(client, table, wanted, consistency).await?;
        if answer.items.is_empty() && !answer.left_out.is_empty() {
            if fruitless == FRUITLESS_ROUNDS {
                let items = answer.left_out.len();
                return Err(ReadError::LeftOut { table: table.to_owned(), items });
            }
            tokio::time::sleep(FIRST_PAUSE * 2_u32.pow(fruitless)).await;
            fruitless += 1;
        }
        items.extend(answer.items);
        wanted = answer.left_out;
    }
    // An answer has its items in any order; a hundred keys are few enough for a search.
    items.sort_by_cached_key(|item: &Attributes| {
        keys.iter().position(|key| key.get(PK) == item.get(PK) && key.get(SK) == item.get(SK))
    });
    Ok(items)
}

struct BatchAnswer {
    items: Vec<Attributes>,
    /// Keys that the answer lacks because the table was throttled, or the answer would have
    /// exceeded 16 MB.
    left_out: Vec<Attributes>,
}

async fn fetch_once(
    client: &Client,
    table: &str,
    keys: Vec<Attributes>,
    consistency: Consistency,
) -> Result<BatchAnswer, RequestError> {
    let wanted = KeysAndAttributes::builder()
        .set_keys(Some(keys))
        .consistent_read(consistency == Consistency::Strong)
        .build()
        .map_err(|error| RequestError::failed("BatchGetItem", table, error))?;
    let output = client
        .batch_get_item()
        .request_items(table, wanted)
        .send()
        .await
        .map_err(|error| RequestError::of("BatchGetItem", table, error))?;
    let tables = output.responses.ok_or_else(|| RequestError::empty("BatchGetItem", table))?;
    let items = { tables }.remove(table);
    let left_out = output.unprocessed_keys.and_then(|mut tables| tables.remove(table));
    Ok(BatchAnswer {
        items: items.unwrap_or_default(),
        left_out: left_out.map(|left| left.keys).unwrap_or_default(),
    })
}
