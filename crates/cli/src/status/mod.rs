//! `sluicegate status`: the current balances, the times when they are full, and the sources of
//! their limits.

mod limit_row;

use std::collections::{HashMap, HashSet};
use std::process::ExitCode;

use serde_dynamo::Item;
use sluicegate::dynamo::DynamoTable;
use sluicegate::store::{Consistency, Table};
use sluicegate::{Clock, SystemClock};
use sluicegate_core::keys::{ItemKey, LimitsScope};
use sluicegate_core::{BucketId, CompositeBucket, ItemError, StoredLimits};

use crate::connection::Connection;
use crate::error::{CliError, exit, say};
use crate::options::Options;
use crate::output::{self, amount, duration};
use crate::readable::{Readable, readable};
use crate::whose::{Whose, Words};
pub(crate) use limit_row::{DELETED, LimitRow};

/// The most keys of one read.
const KEYS_PER_READ: usize = 100;

/// Show balances now, when they are full again, and where their limits come from.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate status user-123
  sluicegate status user-123 gpt-4 --output json
  sluicegate status --resource gpt-4

FROM is the level that names the limit: entity+resource, entity, resource, system; request for
one that came with an acquire; deleted for one that goes with the next refill, because its level
no longer names it.

Exit codes: 0 shown, 1 there is no such bucket, or a broken one or those of a broken level were
left out, 2 bad input, 5 the table could not be used.")]
pub(crate) struct Args {
    #[command(flatten)]
    whose: Words,
}

pub(crate) async fn run(args: Args, options: &Options) -> Result<ExitCode, CliError> {
    let whose = args.whose.whose()?;
    let connection = options.connect().await?;
    let Readable { items: limit_rows, broken } = limit_rows(&connection, &whose).await?;
    if limit_rows.is_empty() && broken == 0 {
        if options.is_json() {
            output::json(&limit_rows)?;
        }
        let nothing = match whose {
            Whose::Entity(_) | Whose::Resource(_) => {
                "no bucket yet; `sluicegate limits show --system` shows the limits that hold for all entities"
            }
            Whose::Bucket(..) => "no bucket and no limit; make one with `sluicegate acquire`",
        };
        return Err(CliError::Attention(format!("{whose} has {nothing}")));
    }
    if options.is_json() {
        output::json(&limit_rows)?;
    } else {
        output::line(&shown(&limit_rows))?;
    }
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::ATTENTION) })
}

/// Every limit of the requested buckets, as a request would find it now.
pub(crate) async fn limit_rows(
    connection: &Connection,
    whose: &Whose,
) -> Result<Readable<LimitRow>, CliError> {
    let table = DynamoTable::new(&connection.client(), connection.table()).converting_legacy();
    let Readable { items: mut buckets, mut broken } = buckets(connection, &table, whose).await?;
    let mut levels = HashMap::new();
    let scopes = buckets.iter().flat_map(|(bucket, _)| LimitsScope::levels(bucket));
    let scopes: Vec<LimitsScope> = scopes.collect::<HashSet<_>>().into_iter().collect();
    for some in scopes.chunks(KEYS_PER_READ) {
        let keys: Vec<_> = some.iter().cloned().map(ItemKey::Limits).collect();
        for (scope, item) in some.iter().zip(read(&table, &keys).await?) {
            let key = ItemKey::Limits(scope.clone());
            match decoded(&key, item.as_ref(), StoredLimits::from_item) {
                Ok(stored) => levels.extend(stored.map(|stored| (scope.clone(), stored))),
                Err(error) if matches!(whose, Whose::Bucket(..)) => return Err(error),
                Err(error) => {
                    say(&format!("left out, with its buckets: {error}"));
                    broken += 1;
                    buckets.retain(|(bucket, _)| !LimitsScope::levels(bucket).contains(scope));
                }
            }
        }
    }
    let now = SystemClock.now();
    let of_bucket = |(bucket, image): &(BucketId, Option<CompositeBucket>)| {
        LimitRow::all(bucket, image.as_ref(), &levels, now)
    };
    Ok(Readable { items: buckets.iter().flat_map(of_bucket).collect(), broken })
}

/// The requested buckets; a named one even if it was never used.
async fn buckets(
    connection: &Connection,
    table: &DynamoTable,
    whose: &Whose,
) -> Result<Readable<(BucketId, Option<CompositeBucket>)>, CliError> {
    let reader = connection.reader().including_legacy();
    let images: Readable<CompositeBucket> = match whose {
        Whose::Bucket(entity, resource) => {
            let key = ItemKey::Bucket(entity.clone(), resource.clone());
            let item = read(table, std::slice::from_ref(&key)).await?.into_iter().next().flatten();
            let image = decoded(&key, item.as_ref(), CompositeBucket::from_item)?;
            let bucket = BucketId { entity: entity.clone(), resource: resource.clone() };
            return Ok(Readable { items: vec![(bucket, image)], broken: 0 });
        }
        Whose::Entity(entity) => readable(reader.buckets_of_entity(entity)).await?,
        Whose::Resource(resource) => readable(reader.buckets_of_resource(resource)).await?,
    };
    let items = images.items.into_iter().map(|image| (image.id(), Some(image))).collect();
    Ok(Readable { items, broken: images.broken })
}

async fn read(table: &DynamoTable, keys: &[ItemKey]) -> Result<Vec<Option<Item>>, CliError> {
    Ok(table.read(keys, Consistency::Strong).await?.items)
}

fn decoded<T>(
    key: &ItemKey,
    item: Option<&Item>,
    from_item: fn(&Item) -> Result<Option<T>, ItemError>,
) -> Result<Option<T>, CliError> {
    let decoded = item.map(from_item).transpose();
    decoded.map(Option::flatten).map_err(|error| {
        CliError::Store(format!(
            "the item PK={} SK={} is broken: {error}; repair or delete it",
            key.pk(),
            key.sk()
        ))
    })
}

fn shown(limit_rows: &[LimitRow]) -> String {
    let rows = limit_rows.iter().map(|row| {
        let rule = match &row.now {
            None => row.rule.clone(),
            Some(now) => format!("{} (now {now})", row.rule),
        };
        vec![
            row.entity.clone(),
            row.resource.clone(),
            row.limit.clone(),
            amount(&row.limit, row.available_milli),
            amount(&row.limit, row.burst_milli),
            match row.full_in_ms {
                Some(0) => "full".to_owned(),
                Some(millis) => duration(millis),
                None => "never".to_owned(),
            },
            rule,
            row.from.to_owned(),
        ]
    });
    let header = ["entity", "resource", "limit", "available", "burst", "full in", "rule", "from"];
    output::table(&header, rows, &[3, 4, 5])
}
