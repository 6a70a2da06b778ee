//! Shared parts of the examples that measure at an engine: its table, medians, and the aims of a
//! run.

use std::process::ExitCode;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};

/// The aims that a run must reach.
#[derive(Debug, Default)]
pub(crate) struct Aims {
    missed: Vec<String>,
}

impl Aims {
    pub(crate) fn at_most(&mut self, figure: f64, aim: f64, of: &str) {
        // A figure that is not a number misses every aim.
        if !(figure <= aim) {
            self.missed.push(format!("{of}: {figure:.3}, at most {aim}"));
        }
    }

    #[allow(dead_code, reason = "an example without such a line")]
    pub(crate) fn at_least(&mut self, figure: f64, aim: f64, of: &str) {
        if !(figure >= aim) {
            self.missed.push(format!("{of}: {figure:.3}, at least {aim}"));
        }
    }

    /// Prints the aims that were missed.
    pub(crate) fn conclude(self) -> ExitCode {
        if self.missed.is_empty() {
            println!("\nall aims hold");
            return ExitCode::SUCCESS;
        }
        eprintln!("\nmissed: {}", self.missed.join("; "));
        ExitCode::FAILURE
    }
}

pub(crate) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// In milliseconds.
pub(crate) fn percentile(took: &mut [Duration], share: f64) -> f64 {
    took.sort_unstable();
    let index = ((took.len() - 1) as f64 * share).round() as usize;
    took[index].as_secs_f64() * 1_000.0
}

/// A table without a stream: with one, every write would scan the records of all writes before it.
pub(crate) async fn create_table(client: &Client, name: &str) {
    let key = |name, kind| {
        KeySchemaElement::builder().attribute_name(name).key_type(kind).build().unwrap()
    };
    let attribute = |name| {
        AttributeDefinition::builder()
            .attribute_name(name)
            .attribute_type(ScalarAttributeType::S)
            .build()
            .unwrap()
    };
    client
        .create_table()
        .table_name(name)
        .billing_mode(BillingMode::PayPerRequest)
        .key_schema(key("PK", KeyType::Hash))
        .key_schema(key("SK", KeyType::Range))
        .attribute_definitions(attribute("PK"))
        .attribute_definitions(attribute("SK"))
        .send()
        .await
        .unwrap();
}
