//! The cost of a batch, counted at the server.

use std::collections::BTreeMap;

use sluicegate_processor::{Processor, Settings};
use sluicegate_testkit::Proxy;
use sluicegate_testkit::usage::read_usages;

use crate::support::{Records, acquire, deliver, on_every_engine};

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_records_of_ten_buckets_are_twenty_updates_and_no_read() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let proxy = Proxy::start(engine.endpoint_url()).await;
        let client = sluicegate_local::client::dynamodb(&proxy.endpoint_url());
        let processor = Processor::new(client, Settings::new(&table));
        let batch: Records =
            (0..1_000).map(|n| acquire(&format!("user-{}", n % 10), n, 0, 1_000)).collect();

        let first = deliver(&processor, &batch).await;
        assert_eq!(proxy.received_by_operation(), BTreeMap::from([("UpdateItem".to_owned(), 20)]));
        assert_eq!(first.report.window_updates, 20);
        // A new item and its entry in the index of the resource.
        assert_eq!(first.report.write_units, 40.0);

        // Again: twenty conditions fail, nothing is read and nothing else is sent.
        proxy.reset_counts();
        let again = deliver(&processor, &batch).await;
        assert_eq!(proxy.received_by_operation(), BTreeMap::from([("UpdateItem".to_owned(), 20)]));
        assert_eq!((again.report.window_updates, again.report.duplicates_dropped), (0, 1_000));

        // More of the same hour: the index entry does not change, one unit a window.
        let more: Records =
            (0..1_000).map(|n| acquire(&format!("user-{}", n % 10), 1_000 + n, 0, 1_000)).collect();
        let more = deliver(&processor, &more).await;
        assert_eq!((more.report.window_updates, more.report.write_units), (20, 20.0));
        let found = read_usages(engine.client(), &table).await;
        assert_eq!(found.len(), 20);
        assert!(found.values().all(|usage| usage.consumed_milli["rpm"] == 200_000));
    })
    .await;
}
