//! This project as its documentation sets it up, on DynamoDB and on Redis.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::types::StreamSpecification;
use sluicegate::redis::RedisStore;
use sluicegate::store::Store;
use sluicegate::{
    AcquireError, DynamoStore, LeaseSettings, Limit, Limiter, LimiterBuilder, OnUnavailable,
};
use sluicegate_local::{client, table};

use crate::contestant::Contestant;
use crate::protocol::{self, Decision};

/// A write on the embedded engine may wait for those of 32 tasks; an outage is not compared.
const DEADLINE: Duration = Duration::from_secs(10);

pub(crate) async fn dynamodb(url: &str) -> Limiter {
    enforced(Limiter::builder(store(url).await))
}

pub(crate) async fn leased(url: &str) -> impl Contestant {
    enforced(Limiter::builder(store(url).await).leasing(LeaseSettings::default()))
}

pub(crate) fn redis(url: &str) -> Limiter {
    enforced(Limiter::builder(RedisStore::new(url).unwrap()))
}

/// Without the store, no request is admitted.
fn enforced<S: Store>(limiter: LimiterBuilder<S>) -> Limiter {
    limiter.deadline(DEADLINE).on_unavailable(OnUnavailable::Deny).build()
}

/// A table of its own, with its indexes. Its stream is turned off, as those of the peers are.
async fn store(url: &str) -> DynamoStore {
    // With the SDK's default repetitions.
    let config = client::dynamodb_config(url).retry_config(RetryConfig::standard());
    let client = Client::from_conf(config.build());
    let name = format!("sluicegate-{}", std::process::id());
    table::create_table(&client, &name).await.unwrap();
    let no_stream = StreamSpecification::builder().stream_enabled(false).build().unwrap();
    let update = client.update_table().table_name(&name).stream_specification(no_stream);
    update.send().await.unwrap();
    DynamoStore::new(client, name)
}

pub(crate) fn limits(limits: &[protocol::Limit]) -> Vec<Limit> {
    let limit = |limit: &protocol::Limit| {
        let period = Duration::from_secs(limit.seconds.into());
        Limit::every(&limit.name, limit.tokens.into(), period)
    };
    limits.iter().map(limit).collect()
}

pub(crate) fn decision<T>(answer: Result<T, AcquireError>) -> Decision {
    match answer {
        Ok(_) => Decision::Admitted,
        Err(AcquireError::LimitExceeded(_)) => Decision::Refused,
        Err(error) => Decision::Failed(error.to_string()),
    }
}

impl Contestant for Limiter {
    type Rules = Vec<Limit>;

    fn rules(&self, wanted: &[protocol::Limit]) -> Vec<Limit> {
        limits(wanted)
    }

    async fn ask(&self, key: &str, rules: &Vec<Limit>) -> Decision {
        let mut request = self.acquire(key, "api").limits(rules.iter().cloned());
        for limit in rules {
            request = request.consume(limit.name(), 1);
        }
        decision(request.await)
    }
}
