//! The table that a program creates is the one that the template deploys.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{KeySchemaElement, TableDescription, TimeToLiveStatus};
use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Value, json};
use sluicegate::dynamo::{RequestError, TableSetupError, create_table, stream_arn};

use crate::on_every_engine;

const TEMPLATE: &str = include_str!("../../../../template.yaml");
/// The properties of the table's behaviour, not its name and protection.
const PROPERTIES: [&str; 6] = [
    "AttributeDefinitions",
    "BillingMode",
    "GlobalSecondaryIndexes",
    "KeySchema",
    "StreamSpecification",
    "TimeToLiveSpecification",
];

type Properties = BTreeMap<&'static str, Value>;

#[tokio::test]
async fn the_table_is_the_one_of_the_template() {
    on_every_engine(async |engine| {
        const TABLE: &str = "sluicegate-as-the-template";
        // Not the testkit's, which may turn expiry off.
        create_table(engine.client(), TABLE).await.unwrap();
        assert_eq!(described(engine.client(), TABLE).await, of_template());
        assert!(stream_arn(engine.client(), TABLE).await.unwrap().contains(TABLE));
        engine.client().delete_table().table_name(TABLE).send().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_name_that_is_taken_and_one_that_is_missing_are_told_apart() {
    on_every_engine(async |engine| {
        let table = engine.create_table().await;
        let again = create_table(engine.client(), &table).await;
        assert!(matches!(again, Err(TableSetupError::Exists { table: name }) if name == table));
        let missing = stream_arn(engine.client(), "sluicegate-missing").await;
        assert!(
            matches!(&missing, Err(TableSetupError::Request(RequestError::MissingTable { .. }))),
            "{missing:?}"
        );
    })
    .await;
}

fn of_template() -> Properties {
    let documents = Yaml::load_from_str(TEMPLATE).unwrap();
    let table = ["Resources", "Table", "Properties"]
        .iter()
        .fold(&documents[0], |node, key| node.as_mapping_get(key).unwrap());
    PROPERTIES
        .into_iter()
        .map(|name| (name, sorted(json_of(table.as_mapping_get(name).unwrap()))))
        .collect()
}

/// The YAML of these properties has no tags and no numbers.
fn json_of(node: &Yaml<'_>) -> Value {
    match node {
        Yaml::Value(Scalar::String(text)) => json!(text),
        Yaml::Value(Scalar::Boolean(value)) => json!(value),
        Yaml::Sequence(items) => items.iter().map(json_of).collect(),
        Yaml::Mapping(mapping) => mapping
            .iter()
            .map(|(key, value)| (key.as_str().unwrap().to_owned(), json_of(value)))
            .collect(),
        other => panic!("{other:?}"),
    }
}

async fn described(client: &Client, name: &str) -> Properties {
    let description = client.describe_table().table_name(name).send().await.unwrap();
    let table = description.table().unwrap();
    let ttl = client.describe_time_to_live().table_name(name).send().await.unwrap();
    let ttl = ttl.time_to_live_description().unwrap();
    let is_on = [TimeToLiveStatus::Enabled, TimeToLiveStatus::Enabling]
        .contains(ttl.time_to_live_status().unwrap());
    let billing = table.billing_mode_summary().and_then(|summary| summary.billing_mode());
    let stream = table.stream_specification().unwrap();
    let values = [
        attributes(table),
        json!(billing.unwrap().as_str()),
        indexes(table),
        keys(table.key_schema()),
        json!({"StreamViewType": stream.stream_view_type().unwrap().as_str()}),
        json!({"AttributeName": ttl.attribute_name(), "Enabled": is_on}),
    ];
    PROPERTIES.into_iter().zip(values.map(sorted)).collect()
}

fn attributes(table: &TableDescription) -> Value {
    let attribute = |a: &aws_sdk_dynamodb::types::AttributeDefinition| json!({"AttributeName": a.attribute_name(), "AttributeType": a.attribute_type().as_str()});
    table.attribute_definitions().iter().map(attribute).collect()
}

fn indexes(table: &TableDescription) -> Value {
    let indexes = table.global_secondary_indexes().iter().map(|index| {
        let projection = index.projection().and_then(|projection| projection.projection_type());
        json!({
            "IndexName": index.index_name(),
            "KeySchema": keys(index.key_schema()),
            "Projection": {"ProjectionType": projection.unwrap().as_str()},
        })
    });
    indexes.collect()
}

fn keys(schema: &[KeySchemaElement]) -> Value {
    let key = |k: &KeySchemaElement| json!({"AttributeName": k.attribute_name(), "KeyType": k.key_type().as_str()});
    schema.iter().map(key).collect()
}

/// Lists mean the same in any order, and engines return them in theirs.
fn sorted(mut value: Value) -> Value {
    if let Value::Array(items) = &mut value {
        items.sort_by_key(Value::to_string);
    }
    value
}
