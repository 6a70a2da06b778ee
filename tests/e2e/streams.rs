//! From writes to an engine's table, through its real stream, to windows in the same table.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use sluicegate_local::InProcess;
use sluicegate_local::poller::{BatchSize, Poller, Settings};
use sluicegate_testkit::usage::read_usages;
use sluicegate_testkit::{AtLeastOnce, RunningEngine};

use crate::support::{on_every_engine, processor, totals};

/// 2026-01-28T14:00:00Z.
const RF: i64 = 1_769_608_800_000;

/// One atomic consumption, the last write of every write path; creates the bucket if absent.
async fn consume(engine: &RunningEngine, table: &str, entity: &str, rf: i64, milli: i64) {
    let number = |n: i64| AttributeValue::N(n.to_string());
    engine
        .client()
        .update_item()
        .table_name(table)
        .key("PK", AttributeValue::S(format!("ENTITY#{entity}")))
        .key("SK", AttributeValue::S("#BUCKET#gpt-4".to_owned()))
        .update_expression("SET rf = :rf ADD b_rpm_tk :tk, b_rpm_tc :tc, b_tpm_tc :tpm")
        .expression_attribute_values(":rf", number(rf))
        .expression_attribute_values(":tk", number(-milli))
        .expression_attribute_values(":tc", number(milli))
        .expression_attribute_values(":tpm", number(milli * 7))
        .send()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_sum_to_the_growth_of_every_counter_on_a_real_stream() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let mut rng = fastrand::Rng::with_seed(23);
        let mut growth: BTreeMap<(String, String, String), i128> = BTreeMap::new();
        for n in 0..200 {
            let entity = format!("user-{}", rng.u8(..5));
            let milli = rng.i64(-500..5_000);
            consume(engine, &table, &entity, RF + n * 60_000, milli).await;
            if milli != 0 {
                for (limit, milli) in [("rpm", milli), ("tpm", milli * 7)] {
                    let id = (entity.clone(), "gpt-4".to_owned(), limit.to_owned());
                    *growth.entry(id).or_default() += i128::from(milli);
                }
            }
            // A bucket that is deleted and created again counts from zero and loses nothing.
            if n % 40 == 39 {
                delete(engine, &table, &entity).await;
            }
        }
        let function = InProcess::new(processor(engine, &table), Duration::from_secs(60));
        let settings = Settings { batch_size: BatchSize::new(30).unwrap(), ..Settings::default() };
        // With this seed, a delivery of the buckets begins with records of the one before.
        let delivery = AtLeastOnce::seeded(function, 1);
        let mut poller = Poller::new(engine.stream(&table).await, &delivery, settings);
        poller.drain().await.unwrap();
        assert!(delivery.repeated() > 20, "{}", delivery.repeated());
        let found = read_usages(engine.client(), &table).await;
        for kind in ["hour", "day"] {
            assert_eq!(totals(&found, kind), growth, "{kind}");
        }

        // A poller that knows no checkpoint reads everything again, its own windows included.
        let function = InProcess::new(processor(engine, &table), Duration::from_secs(60));
        let mut poller = Poller::new(engine.stream(&table).await, function, Settings::default());
        poller.drain().await.unwrap();
        assert_eq!(read_usages(engine.client(), &table).await, found);
    })
    .await;
}

async fn delete(engine: &RunningEngine, table: &str, entity: &str) {
    engine
        .client()
        .delete_item()
        .table_name(table)
        .key("PK", AttributeValue::S(format!("ENTITY#{entity}")))
        .key("SK", AttributeValue::S("#BUCKET#gpt-4".to_owned()))
        .send()
        .await
        .unwrap();
}
