//! One shard's worker: reads ahead, cuts batches, delivers them until they are done.
//!
//! A worker has at most one call of the handler in flight, which keeps a shard in order.

use std::collections::VecDeque;
use std::time::Duration;

use super::batch::Batch;
use super::context::{Context, Mode, lock};
use super::handler::Handler;
use super::source::{Position, Record, Shard, Source};
use crate::{BoxError, Error};

/// The payload that Lambda accepts for one invocation, less the envelope.
const PAYLOAD_BYTES_MAX: usize = 6 * 1024 * 1024 - 1024;

/// A real stream may answer with empty pages although records follow; so many in a row mean that
/// an open shard has none now.
const EMPTY_READS_WHEN_CAUGHT_UP: u32 = 10;
/// A closed shard is read to its end: else its children would not be read. A shard that never ends,
/// of an engine that is not DynamoDB, is left after so many empty pages.
const EMPTY_READS_OF_CLOSED_MAX: u32 = 1_000;

/// The result of a worker's turn.
pub(super) enum Outcome {
    /// A batch was delivered; there may be more.
    Delivered,
    /// There is nothing to deliver now.
    CaughtUp,
    /// The shard is closed and everything of it is done.
    Ended,
    /// The run is being stopped.
    Stopped,
}

pub(super) struct Worker {
    shard: String,
    /// The position up to which the shard was read; ahead of the checkpoint by the buffered
    /// records.
    read_to: Option<Position>,
    buffer: VecDeque<Record>,
    is_closed: bool,
    ended: bool,
    /// True if a record was read that was made after the beginning of a drain.
    is_past_begin: bool,
    /// See [`Context::is_after_begin`].
    behind_s: f64,
}

/// A part of a batch that is still to be delivered.
struct Stretch {
    first: usize,
    end: usize,
    /// Deliveries so far without progress.
    attempts: u32,
}

impl Worker {
    pub(super) fn new(shard: &Shard, start: Option<Position>) -> Self {
        Self {
            shard: shard.id.clone(),
            read_to: start,
            buffer: VecDeque::new(),
            is_closed: shard.is_closed,
            ended: false,
            is_past_begin: false,
            behind_s: 0.0,
        }
    }

    pub(super) fn into_shard(self) -> String {
        self.shard
    }

    /// After a pause, delivers one batch.
    pub(super) async fn turn<S: Source, H: Handler>(
        mut self,
        context: &Context<'_, S, H>,
        pause: Duration,
    ) -> Result<(Self, Outcome), Error> {
        if !pause.is_zero() {
            context.pause(pause).await;
        }
        if let Err(error) = self.fill(context).await {
            if context.mode == Mode::Drain {
                return Err(error);
            }
            context.note_failure(&self.shard, &error);
            return Ok((self, Outcome::CaughtUp));
        }
        // A run delivers what it has read, also if it is over sooner than a whole batch is read:
        // otherwise turns would read the same records for ever.
        if context.stopping() && self.buffer.is_empty() {
            return Ok((self, Outcome::Stopped));
        }
        let Some(batch) = self.cut(context.settings.batch_size.get()) else {
            let outcome = if self.ended { Outcome::Ended } else { Outcome::CaughtUp };
            return Ok((self, outcome));
        };
        let is_done = self.deliver(&batch, context).await;
        Ok((self, if is_done { Outcome::Delivered } else { Outcome::Stopped }))
    }

    /// Reads until a batch is full, or there are no more records.
    async fn fill<S: Source, H: Handler>(
        &mut self,
        context: &Context<'_, S, H>,
    ) -> Result<(), Error> {
        let batch_size = context.settings.batch_size;
        // The empty pages in a row after which a drain has read everything.
        let empty_reads_max =
            if self.is_closed { EMPTY_READS_OF_CLOSED_MAX } else { EMPTY_READS_WHEN_CAUGHT_UP };
        let mut empty_reads = 0;
        let has_more = |worker: &Self| {
            // Records come into an open shard for ever. The children of a closed one wait for its
            // end.
            let is_done = worker.is_past_begin && !worker.is_closed;
            !worker.ended && !is_done && worker.buffer.len() < batch_size.get()
        };
        while has_more(self) && !context.stopping() {
            let wanted = batch_size.get() - self.buffer.len();
            let page = context.source.read(&self.shard, self.read_to.as_ref(), wanted).await?;
            context.note_answer(&self.shard);
            self.ended = page.ended;
            if let Some(last) = page.records.last() {
                self.read_to = Some(last.position.clone());
                self.is_past_begin |= context.is_after_begin(&last.json, &mut self.behind_s);
                self.buffer.extend(page.records);
                empty_reads = 0;
                continue;
            }
            empty_reads += 1;
            if context.mode == Mode::Follow || empty_reads >= empty_reads_max {
                break;
            }
        }
        Ok(())
    }

    /// Takes the next batch from the records that were read.
    fn cut(&mut self, batch_size: usize) -> Option<Batch> {
        let (mut count, mut bytes) = (0, 0);
        for record in self.buffer.iter().take(batch_size) {
            bytes += record.json.get().len();
            // One record always fits: DynamoDB's items end at 400 KB.
            if count > 0 && bytes > PAYLOAD_BYTES_MAX {
                break;
            }
            count += 1;
        }
        (count > 0).then(|| Batch::new(self.buffer.drain(..count)))
    }

    /// Delivers a batch until all of it is done; `false` if the run was stopped before that.
    async fn deliver<S: Source, H: Handler>(
        &self,
        batch: &Batch,
        context: &Context<'_, S, H>,
    ) -> bool {
        // A stack whose top is the earliest stretch: nothing overtakes a record that failed.
        let mut stretches = vec![Stretch { first: 0, end: batch.payloads.len(), attempts: 0 }];
        while let Some(Stretch { first, end, attempts }) = stretches.pop() {
            let answer = context.handler.handle(&batch.payloads[first..end]).await;
            let (done, failed_whole) = match answer {
                Ok(response) => (batch.done_until(first, end, &response), false),
                Err(error) => {
                    let error: BoxError = error.into();
                    tracing::warn!(%error, shard = self.shard, "batch failed; delivering it again");
                    (first, true)
                }
            };
            if done > first {
                let checkpoint = batch.positions[done - 1].clone();
                lock(context.checkpoints).insert(self.shard.clone(), checkpoint);
            }
            // A partial answer names the record to continue from, so it is not halved.
            if failed_whole && end - first > 1 {
                let middle = first + (end - first) / 2;
                stretches.push(Stretch { first: middle, end, attempts: 0 });
                stretches.push(Stretch { first, end: middle, attempts: 0 });
            } else if done < end {
                let attempts = if done > first { 1 } else { attempts + 1 };
                context.pause(context.settings.backoff.after(attempts)).await;
                stretches.push(Stretch { first: done, end, attempts });
            }
            if context.stopping() {
                return stretches.is_empty();
            }
        }
        true
    }
}
