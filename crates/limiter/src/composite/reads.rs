//! Reading what an acquire has to know.

use futures_util::FutureExt as _;
use sluicegate_core::BucketId;
use sluicegate_core::keys::ItemKey;

use super::acquire::Acquiring;
use super::side::Side;
use crate::error::{AcquireError, InvalidRequest};
use crate::table::{Consistency, Table};

impl<T: Table> Acquiring<'_, '_, '_, T> {
    /// Reads what nobody knows yet, and what other processes are known to have moved on: half a
    /// read is cheaper than a write that fails.
    pub(super) async fn read_first(&mut self) -> Result<(), AcquireError> {
        let now = self.run.now();
        let interval = i64::from(self.store.settings.claim_interval.0);
        let is_wanted = |side: &Side| match (&side.known, side.image()) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(_), Some(image)) => {
                let is_stale = now.get() - image.refilled_at.get() > interval;
                let rivals = &side.entry.rivals;
                is_stale && rivals.moves() && !rivals.claimed_lately() && !side.is_fresh
            }
        };
        let wanted: Vec<_> =
            (0..self.sides.len()).filter(|index| is_wanted(&self.sides[*index])).collect();
        if wanted.is_empty() { Ok(()) } else { self.read(&wanted).await }
    }

    /// Reads the short sides whose image is too old to say "no" from.
    pub(super) async fn refresh(&mut self) -> Result<(), AcquireError> {
        let stale: Vec<_> =
            (0..self.sides.len()).filter(|index| !self.sides[*index].is_fresh).collect();
        self.read(&stale).await
    }

    async fn read(&mut self, wanted: &[usize]) -> Result<(), AcquireError> {
        let key = |index: &usize| {
            let BucketId { entity, resource } = self.sides[*index].bucket.clone();
            ItemKey::Bucket(entity, resource)
        };
        let keys: Vec<_> = wanted.iter().map(key).collect();
        loop {
            let found = self.run.in_time(self.store.table.read(&keys, Consistency::Strong)).await;
            match found {
                Ok(found) => {
                    self.run.read_units += found.read_units;
                    let now = self.run.now();
                    for (index, item) in wanted.iter().zip(found.items) {
                        let side = &mut self.sides[*index];
                        let image = super::image(&side.bucket, item.as_ref())?;
                        if let (Some(stale), Some(found)) = (side.image(), &image) {
                            side.entry.rivals.observe(
                                stale,
                                found,
                                now,
                                self.store.settings.claim_interval,
                            );
                        }
                        side.learn(image, now, true);
                    }
                    return Ok(());
                }
                Err(trouble) => self.wait_out(trouble).await?,
            }
        }
    }

    /// Reads levels again of which an item follows a change that is not known here. Once in a call:
    /// until they are read the item stays as it is.
    pub(super) async fn update_configurations(&mut self) {
        for side in &mut self.sides {
            let is_behind = |image| side.configuration.is_behind(image);
            let Some(image) = side.image().filter(|image| is_behind(image)).cloned() else {
                continue;
            };
            if std::mem::replace(&mut side.may_update, false) {
                let (bucket, entry) = (&side.bucket, &side.entry);
                let (configuration, run) = (&side.configuration, &mut *self.run);
                let newer = self.store.updated(bucket, entry, configuration, &image, run).boxed();
                if let Some(newer) = newer.await {
                    side.configuration = newer;
                }
            }
        }
    }

    /// A limit that nobody knows may have been stored a moment ago.
    pub(super) async fn look_again(&mut self, unknown: InvalidRequest) -> Result<(), AcquireError> {
        if std::mem::replace(&mut self.refreshed_configuration, true) {
            return Err(unknown.into());
        }
        for side in &mut self.sides {
            self.store.look_up_again(side, self.run).await?;
        }
        self.refresh().await
    }
}
