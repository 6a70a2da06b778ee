//! The demand of a load on a table and its processor, in closed form.
//!
//! Rates are per second. An entity of rank i gets a share of the load proportional to i^-s (Zipf).
//! Writes of a bucket are taken as Poisson, so within t seconds 1 - exp(-w t) of a bucket of rate w
//! is expected in a batch.

/// The load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Acquires, over all entities.
    pub(super) acquires: f64,
    /// The number of entities.
    pub(super) entities: u32,
    /// Exponent of the skew; 0 is none.
    pub(super) skew: f64,
    /// Kinds of usage windows.
    pub(super) kinds: f64,
}

/// The way in which producers write.
#[derive(Debug, Clone, Copy)]
pub(super) enum Producers {
    /// One write for an acquire.
    Plain,
    /// Tokens are leased by `processes` that share each entity, each bucket once in `renewal`
    /// seconds; a process that acquires less often makes one write for each acquire.
    Leasing { processes: f64, renewal: f64 },
}

/// The capacity of AWS and the processor, per second unless stated otherwise.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Writes of one item, and of one partition.
    pub(super) partition_writes: f64,
    /// The share of a partition's writes that is used before it splits.
    pub(super) utilisation: f64,
    /// Records in a batch.
    pub(super) batch: f64,
    /// Seconds that a batch waits to fill.
    pub(super) batch_window: f64,
    /// Seconds of an invocation without its writes.
    pub(super) overhead: f64,
    /// Seconds of one write.
    pub(super) write: f64,
    /// Concurrent writes of one invocation.
    pub(super) writes_at_once: f64,
}

/// The resulting demand.
#[derive(Debug, Clone)]
pub(super) struct Need {
    /// Writes of each bucket.
    writes: Vec<f64>,
    kinds: f64,
    /// Acquires beyond the ceiling of one item.
    pub(super) beyond_an_item: f64,
    /// Writes of buckets, which are the records of the stream.
    pub(super) bucket_writes: f64,
    pub(super) window_writes: f64,
    /// Shards of the stream, each of which is a partition of the table.
    pub(super) shards: f64,
    /// Invocations in flight.
    pub(super) concurrency: f64,
    /// Seconds of one invocation.
    pub(super) duration: f64,
}

impl Load {
    /// The rates of all entities, highest first.
    fn rates(&self) -> Vec<f64> {
        let weights: Vec<f64> =
            (1..=self.entities).map(|rank| f64::from(rank).powf(-self.skew)).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum * self.acquires).collect()
    }
}

impl Producers {
    fn writes(self, rate: f64) -> f64 {
        match self {
            Self::Plain => rate,
            Self::Leasing { processes, renewal } => {
                processes * (rate / processes).min(1.0 / renewal)
            }
        }
    }
}

/// Solves for the shards: windows are written to the table whose partitions they need.
pub(super) fn need(load: &Load, producers: Producers, limits: &Limits) -> Need {
    let wanted = load.rates().into_iter().map(|rate| producers.writes(rate));
    let (mut beyond_an_item, mut writes) = (0.0, Vec::new());
    for rate in wanted {
        beyond_an_item += (rate - limits.partition_writes).max(0.0);
        writes.push(rate.min(limits.partition_writes));
    }
    let bucket_writes: f64 = writes.iter().sum();
    let shards_for = |total: f64| (total / limits.partition_writes / limits.utilisation).ceil();

    let mut shards = shards_for(bucket_writes);
    let (mut window_writes, mut span) = (0.0, limits.batch_window);
    // Each round comes closer; five digits are exact long before the last.
    for _ in 0..12 {
        span = limits.batch_window.min(limits.batch * shards / bucket_writes);
        window_writes = load.kinds * distinct(&writes, span) / span;
        shards = shards_for(bucket_writes + window_writes);
    }
    let duration = limits.duration(window_writes * span / shards);
    Need {
        writes,
        kinds: load.kinds,
        beyond_an_item,
        bucket_writes,
        window_writes,
        shards,
        concurrency: shards * duration / span,
        duration,
    }
}

/// Buckets that are written within this many seconds.
fn distinct(writes: &[f64], span: f64) -> f64 {
    writes.iter().map(|rate| 1.0 - (-rate * span).exp()).sum()
}

impl Limits {
    /// Seconds of an invocation that writes this many windows.
    fn duration(&self, windows: f64) -> f64 {
        self.overhead + (windows / self.writes_at_once).ceil() * self.write
    }
}

impl Need {
    /// The age in seconds of the oldest record, for each second from the end of an outage on, until
    /// it is zero or for `most` seconds. `parallel` is the number of concurrent batches of a shard.
    pub(super) fn ages(
        &self,
        limits: &Limits,
        parallel: f64,
        outage: f64,
        most: usize,
    ) -> Vec<f64> {
        let inflow = self.bucket_writes / self.shards;
        let drained = self.drained(limits, parallel);
        let mut backlog = inflow * outage;
        let mut ages = Vec::new();
        while backlog > 0.0 && ages.len() < most {
            ages.push(backlog / inflow);
            backlog += inflow - drained;
        }
        ages
    }

    /// Records of a shard that can be counted in a second: full batches one after the other, whose
    /// windows the partition must take beside the incoming writes.
    fn drained(&self, limits: &Limits, parallel: f64) -> f64 {
        let inflow = self.bucket_writes / self.shards;
        let span = limits.batch / inflow;
        let windows = self.kinds * distinct(&self.writes, span) / self.shards;
        let free = limits.partition_writes - inflow;
        (parallel * limits.batch / limits.duration(windows)).min(free / windows * limits.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::LIMITS;

    fn even(acquires: f64, entities: u32) -> Load {
        Load { acquires, entities, skew: 0.0, kinds: 2.0 }
    }

    #[test]
    fn buckets_that_are_written_often_share_their_windows() {
        // 100 buckets of 10 writes a second: all are in every batch of 5 s.
        let need = need(&even(1_000.0, 100), Producers::Plain, &LIMITS);
        assert!((need.bucket_writes - 1_000.0).abs() < 1e-6, "{need:?}");
        assert!(need.window_writes > 99.0 && need.window_writes < 250.0, "{need:?}");
        assert!(need.beyond_an_item.abs() < 1e-6 && need.shards >= 2.0, "{need:?}");
        // Each in a batch of its own: two windows for a write.
        let need = super::need(&even(1_000.0, 1_000_000), Producers::Plain, &LIMITS);
        assert!((need.window_writes / need.bucket_writes - 2.0).abs() < 0.02, "{need:?}");
    }

    #[test]
    fn an_item_takes_a_thousand_writes_and_leasing_is_how_more_get_through() {
        let hot = even(50_000.0, 1);
        let plain = need(&hot, Producers::Plain, &LIMITS);
        assert!((plain.beyond_an_item - 49_000.0).abs() < 1e-6, "{plain:?}");
        let leasing = Producers::Leasing { processes: 20.0, renewal: 1.0 };
        let leased = need(&hot, leasing, &LIMITS);
        assert!(leased.beyond_an_item.abs() < 1e-6, "{leased:?}");
        assert!((leased.bucket_writes - 20.0).abs() < 1e-6, "{leased:?}");
    }

    #[test]
    fn a_backlog_is_gone_sooner_in_larger_batches() {
        let need = need(&even(100_000.0, 100_000), Producers::Plain, &LIMITS);
        let small = need.ages(&LIMITS, 10.0, 600.0, 100_000);
        let large = need.ages(&Limits { batch: 2_800.0, ..LIMITS }, 10.0, 600.0, 100_000);
        assert!((small[0] - 600.0).abs() < 1e-6);
        assert!(large.len() < small.len() && !large.is_empty(), "{} {}", large.len(), small.len());
        // With one invocation per shard, 1.5 s of overhead makes it fall behind for good.
        let slow = Limits { overhead: 1.5, ..LIMITS };
        assert_eq!(need.ages(&slow, 1.0, 600.0, 1_000).len(), 1_000);
    }
}
