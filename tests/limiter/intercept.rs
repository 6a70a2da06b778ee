//! Tables whose calls a test delays, counts or loses.

use sluicegate::types::BucketId;
use sluicegate_core::WritePlan;

/// A call on a table.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call<'a> {
    Write(&'a BucketId, &'a WritePlan),
    /// A transaction on two buckets.
    WriteTogether,
    Read,
}

/// Makes a table of a type: its method `intercept` gets every call, and the future that makes it on
/// the table in the field.
macro_rules! intercepting {
    ($name:ident, $inner:tt) => {
        impl sluicegate::store::Table for $name {
            async fn write(
                &self,
                bucket: &sluicegate::types::BucketId,
                plan: &sluicegate_core::WritePlan,
            ) -> Result<sluicegate::store::Written, sluicegate::store::WriteError> {
                let call = crate::intercept::Call::Write(bucket, plan);
                self.intercept(call, sluicegate::store::Table::write(&self.$inner, bucket, plan))
                    .await
            }

            async fn transact_write(
                &self,
                writes: &[(sluicegate::types::BucketId, sluicegate_core::WritePlan)],
                mark: Option<&sluicegate::store::Mark>,
                token: &str,
            ) -> Result<f64, sluicegate::store::TransactError> {
                let call = crate::intercept::Call::WriteTogether;
                self.intercept(
                    call,
                    sluicegate::store::Table::transact_write(&self.$inner, writes, mark, token),
                )
                .await
            }

            async fn read(
                &self,
                keys: &[sluicegate_core::keys::ItemKey],
                consistency: sluicegate::store::Consistency,
            ) -> Result<sluicegate::store::ReadItems, sluicegate::store::TableError> {
                let call = crate::intercept::Call::Read;
                self.intercept(
                    call,
                    sluicegate::store::Table::read(&self.$inner, keys, consistency),
                )
                .await
            }
        }
    };
}
pub(crate) use intercepting;
