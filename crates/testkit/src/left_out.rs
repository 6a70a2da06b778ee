//! Simulates reads of several items that a throttled table answers in part.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::interceptors::{
    BeforeSerializationInterceptorContextRef, FinalizerInterceptorContextMut,
};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::operation::batch_get_item::{BatchGetItemInput, BatchGetItemOutput};
use aws_sdk_dynamodb::types::{AttributeValue, KeysAndAttributes};
use sluicegate_core::keys::{PK, SK};

type Attributes = HashMap<String, AttributeValue>;

/// Leaves keys out of the answers of BatchGetItem: they come back as unprocessed. The last keys of
/// a request are answered first, as DynamoDB promises no order. For clients that make one call at a
/// time.
#[derive(Debug, Clone)]
pub struct LeaveOut {
    keys: usize,
    answers: u32,
    answered: Arc<AtomicU32>,
    /// The input of the call in flight.
    asked: Arc<Mutex<Option<BatchGetItemInput>>>,
}

impl LeaveOut {
    /// In every answer, leaves out all but so many keys.
    #[must_use]
    pub fn beyond(keys: usize) -> Self {
        Self { keys, answers: u32::MAX, answered: Arc::default(), asked: Arc::default() }
    }

    /// Leaves keys out only in the first so many answers.
    #[must_use]
    pub fn at_first(self, answers: u32) -> Self {
        Self { answers, ..self }
    }

    /// A client of the same endpoint whose answers lack these keys.
    #[must_use]
    pub fn client(&self, client: &Client) -> Client {
        let config = client.config().to_builder().interceptor(self.clone());
        Client::from_conf(config.build())
    }

    /// The number of answers so far, whole ones included.
    #[must_use]
    pub fn answers(&self) -> u32 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Removes the left-out keys from an answer.
    fn cut(
        &self,
        asked: &BatchGetItemInput,
        answer: &mut BatchGetItemOutput,
    ) -> Result<(), BoxError> {
        for (table, asked) in asked.request_items.iter().flatten() {
            let (mut kept, mut left): (Vec<&Attributes>, Vec<_>) = Default::default();
            for (n, key) in asked.keys.iter().rev().enumerate() {
                if n < self.keys { kept.push(key) } else { left.push(key.clone()) }
            }
            if let Some(items) = answer.responses.as_mut().and_then(|all| all.get_mut(table)) {
                items.retain(|item| kept.iter().any(|key| is_of(item, key)));
                items.reverse();
            }
            if !left.is_empty() {
                let left = KeysAndAttributes::builder().set_keys(Some(left)).build()?;
                answer.unprocessed_keys.get_or_insert_default().insert(table.clone(), left);
            }
        }
        Ok(())
    }
}

fn is_of(item: &Attributes, key: &Attributes) -> bool {
    [PK, SK].iter().all(|name| item.get(*name) == key.get(*name))
}

impl Intercept for LeaveOut {
    fn name(&self) -> &'static str {
        "LeaveOut"
    }

    fn read_before_serialization(
        &self,
        context: &BeforeSerializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        *self.asked.lock().unwrap() = context.input().downcast_ref().cloned();
        Ok(())
    }

    fn modify_before_completion(
        &self,
        context: &mut FinalizerInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let Some(asked) = self.asked.lock().unwrap().take() else { return Ok(()) };
        let Some(Ok(output)) = context.output_or_error_mut() else { return Ok(()) };
        let Some(answer) = output.downcast_mut::<BatchGetItemOutput>() else { return Ok(()) };
        if self.answered.fetch_add(1, Ordering::Relaxed) < self.answers {
            self.cut(&asked, answer)?;
        }
        Ok(())
    }
}
