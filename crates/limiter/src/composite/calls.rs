//! The calls of a lane on the table.
//!
//! A call owns all that it needs. So if the caller that sent the call leaves, the next leader goes
//! on with the call. If the last caller reaches its deadline, it must be answered now: the lane
//! drops the call, perhaps just sent, and counts it as lost (`Lane::drop_unawaited_call`). If the
//! last caller's future was dropped, there is time: a task waits for the table's answer, which tells
//! if tokens must be given back (`Lane::await_call_in_background`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluicegate_core::keys::ItemKey;
use sluicegate_core::{Answer, BucketId, CompositeBucket, Counts, Write, WritePlan};

use super::composite_store::{CompositeStore, parse_image};
use super::settings::Certainty;
use super::table_call::{LaneMark, LaneTable, PendingCall, TableCall, TableReply};
use crate::call::new_id;
use crate::table::{Cancelled, Consistency, Table, TableError, TransactError, WriteError, Written};

impl<T: Table> LaneTable for CompositeStore<T> {
    fn call(&self, asked: TableCall) -> PendingCall {
        let (table, certainty) = (self.table.clone(), self.settings.certainty);
        Box::pin(async move {
            match asked {
                TableCall::Read(buckets) => read(table.as_ref(), &buckets).await,
                TableCall::Write(buckets, write, marked) => {
                    let marked = marked.as_deref();
                    self::write(table.as_ref(), certainty, &buckets, &write, marked).await
                }
            }
        })
    }

    fn note_counts(&self, counts: Counts, buckets: &[BucketId]) {
        let Counts { ambiguous, clocks_ahead, forced, unextended } = counts;
        self.counters.ambiguous.add(ambiguous);
        self.counters.forced_adjusts.add(forced);
        self.counters.clocks_ahead.add(clocks_ahead);
        let Some(bucket) = buckets.first() else { return };
        if clocks_ahead > 0 {
            tracing::warn!(
                %bucket,
                "the refill time was more than a minute ahead of this clock: it is pulled back"
            );
        }
        if unextended > 0 {
            tracing::warn!(%bucket, "a debt may outlive its bucket: the expiry could not be extended");
        }
    }
}

async fn read<T: Table>(table: &T, buckets: &[BucketId]) -> TableReply {
    let key = |BucketId { entity, resource }: BucketId| ItemKey::Bucket(entity, resource);
    let keys: Vec<_> = buckets.iter().cloned().map(key).collect();
    let found = match table.read(&keys, Consistency::Strong).await {
        Ok(found) => found,
        Err(table_error) => return TableReply::of_error(table_error),
    };
    let parse = |(bucket, item): (&BucketId, &Option<_>)| parse_image(bucket, item.as_ref());
    let images: Result<Vec<_>, _> = buckets.iter().zip(&found.items).map(parse).collect();
    let (answer, table_error) = match images {
        Ok(images) => (Answer::Read(images), None),
        Err(broken) => (Answer::TableUnusable, Some(TableError::Setup(broken))),
    };
    TableReply { answer, write_units: 0.0, read_units: found.read_units, table_error }
}

async fn write<T: Table>(
    table: &T,
    certainty: Certainty,
    buckets: &[BucketId],
    write: &Write,
    marked: Option<&LaneMark>,
) -> TableReply {
    // A write without an id is upkeep. In a lane with a mark it comes after the correction, so the
    // mark exists.
    let marked = marked.filter(|_| write.id.is_some());
    match write.plans.as_slice() {
        [(index, plan)] if marked.is_none() && certainty == Certainty::Remembered => {
            write_one(table, &buckets[*index], plan).await
        }
        _ => transact(table, buckets, write, marked).await,
    }
}

async fn write_one<T: Table>(table: &T, bucket: &BucketId, plan: &WritePlan) -> TableReply {
    match table.write(bucket, plan).await {
        Ok(Written { image, write_units }) => {
            TableReply::of_write(Answer::Written(vec![image]), write_units)
        }
        // A refused write costs as much as the write would have, at least one unit. The answer does
        // not say how much, so it is counted as one unit.
        Err(WriteError::ConditionFailed(image)) => {
            TableReply::of_write(Answer::ConditionFailed(vec![Some(image)]), 1.0)
        }
        Err(WriteError::Table(table_error)) => TableReply::of_error(table_error),
    }
}

/// Makes the writes in one transaction. With `marked`, the transaction also writes that mark. If
/// the mark exists already, nothing is written, `was_there` becomes true, and the correction counts
/// as made.
async fn transact<T: Table>(
    table: &T,
    buckets: &[BucketId],
    write: &Write,
    marked: Option<&LaneMark>,
) -> TableReply {
    let plans = &write.plans;
    let writes: Vec<_> =
        plans.iter().map(|(index, plan)| (buckets[*index].clone(), plan.clone())).collect();
    let token = match &write.id {
        Some((id, generation)) => format!("{}-{generation}", id.as_str()),
        None => new_id().as_str().to_owned(),
    };
    let items = plans.len() + usize::from(marked.is_some());
    // Each write of a transaction is prepared and committed: two units.
    let refused_units = (0..items).map(|_| 2.0).sum();
    let failed = |error| TableReply { write_units: refused_units, ..TableReply::of_error(error) };
    let mark = marked.map(|marked| &marked.mark);
    let reasons = match table.transact_write(&writes, mark, &token).await {
        Ok(write_units) => {
            return TableReply::of_write(Answer::Written(vec![None; plans.len()]), write_units);
        }
        Err(TransactError::Cancelled(reasons)) => reasons,
        Err(TransactError::MarkExists { key_was_reused }) => {
            if let Some(marked) = marked {
                marked.was_there.store(true, Ordering::Relaxed);
                marked.key_was_reused.store(key_was_reused, Ordering::Relaxed);
            }
            // An earlier transaction made the correction, so the answer says that it is written.
            // This transaction wrote nothing, so there are no images.
            return TableReply::of_write(Answer::Written(Vec::new()), refused_units);
        }
        Err(TransactError::Table(table_error)) => return TableReply::of_error(table_error),
    };
    let mut found: Vec<Option<Option<Arc<CompositeBucket>>>> = Vec::with_capacity(plans.len());
    for reason in reasons {
        match reason {
            Cancelled::None => found.push(None),
            Cancelled::ConditionFailed(image) => found.push(Some(image)),
            Cancelled::Table(table_error) => return failed(table_error),
        }
    }
    if found.iter().all(Option::is_none) {
        // None of the buckets' writes was the reason. So it was the write of the mark, although
        // there is no such mark: a conflict.
        return failed(TableError::Conflict);
    }
    TableReply::of_write(Answer::ConditionFailed(found), refused_units)
}
