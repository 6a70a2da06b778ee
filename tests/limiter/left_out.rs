//! A throttled table answers a read of several items with none of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::interceptors::FinalizerInterceptorContextMut;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::operation::batch_get_item::BatchGetItemOutput;
use aws_sdk_dynamodb::types::{AttributeValue, KeysAndAttributes};
use sluicegate::{AcquireError, DynamoTable, Limit, TestClock};
use sluicegate_testkit::{RunningEngine, engines_under_test};

use crate::support::{T0, at, limiter_on};

/// Leaves everything out of the first answers.
#[derive(Debug, Default, Clone)]
struct LeaveOut {
    table: String,
    answers: Arc<AtomicU32>,
    empty: u32,
}

impl Intercept for LeaveOut {
    fn name(&self) -> &'static str {
        "LeaveOut"
    }

    fn modify_before_completion(
        &self,
        context: &mut FinalizerInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let Some(Ok(output)) = context.output_or_error_mut() else { return Ok(()) };
        let Some(answer) = output.downcast_mut::<BatchGetItemOutput>() else { return Ok(()) };
        if self.answers.fetch_add(1, Ordering::Relaxed) < self.empty {
            let keys = ["#META", "#BUCKET#r"].map(|sk| {
                let text = |text: &str| AttributeValue::S(text.to_owned());
                HashMap::from([("PK".into(), text("ENTITY#u")), ("SK".into(), text(sk))])
            });
            let left = KeysAndAttributes::builder().set_keys(Some(keys.to_vec())).build()?;
            answer.responses = None;
            answer.unprocessed_keys = Some(HashMap::from([(self.table.clone(), left)]));
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_out_is_asked_for_with_pauses_and_never_an_outage() {
    for kind in engines_under_test() {
        let engine = RunningEngine::start(kind).await;
        let name = engine.create_table().await;
        for (empty, is_granted) in [(3, true), (u32::MAX, false)] {
            let fault = LeaveOut { table: name.clone(), empty, ..LeaveOut::default() };
            let config = engine.client().config().to_builder().interceptor(fault.clone());
            let table = DynamoTable::new(&Client::from_conf(config.build()), &name);
            let limiter = limiter_on(table, &TestClock::at(at(T0)));
            let deadline = Duration::from_secs(if is_granted { 20 } else { 1 });
            let limits = [Limit::per_minute("rpm", 60)];
            // The entity's record and the bucket together.
            let request = limiter.acquire("u", "r").consume("rpm", 1).limits(limits);
            let result = request.deadline(deadline).await;
            if is_granted {
                result.unwrap();
            } else {
                assert!(matches!(result, Err(AcquireError::Contended { .. })), "{result:?}");
                // A pause is 25 ms on average in the end.
                let answers = fault.answers.load(Ordering::Relaxed);
                assert!(answers < 200, "{answers} reads in a second");
            }
        }
        engine.stop().await;
    }
}
