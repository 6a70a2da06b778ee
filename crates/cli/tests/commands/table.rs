//! `table`: created once, checked, deleted only with confirmation.

use serde_json::json;

use crate::support::on_every_engine;

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_created_looked_at_and_deleted() {
    on_every_engine(async |shell| {
        let run = |line: &str| shell.run(&format!("{line} --table sluicegate-of-this-test"));
        run("table create").text(0);
        let again = run("table create");
        assert!(again.error(1).contains("sluicegate table status"), "{}", again.err);
        let status = run("table status --output json").json(0);
        assert_eq!((&status["state"], &status["problems"]), (&json!("ACTIVE"), &json!([])));
        assert!(run("table status").text(0).contains("sluicegate-of-this-test"));

        let asked = run("table delete");
        assert!(asked.error(2).contains("add --yes"), "{}", asked.err);
        run("table status").text(0);
        let protect = async |on: bool| {
            let update = shell.engine.client().update_table().table_name("sluicegate-of-this-test");
            update.deletion_protection_enabled(on).send().await.unwrap();
        };
        protect(true).await;
        let protected = run("table delete --yes");
        assert!(
            protected.error(1).contains("--no-deletion-protection-enabled"),
            "{}",
            protected.err
        );
        protect(false).await;
        run("table delete --yes").text(0);
        run("table status").error(5);
        run("table delete --yes").error(5);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_without_its_stream_is_not_as_it_should_be() {
    on_every_engine(async |shell| {
        for (name, keys, problems) in
            [("sluicegate-without", ["PK", "SK"], 4), ("sluicegate-of-others", ["id", "at"], 1)]
        {
            let mut request = shell.engine.client().create_table().table_name(name);
            for (attribute, kind) in keys.into_iter().zip(["HASH", "RANGE"]) {
                request = request
                    .attribute_definitions(
                        aws_sdk_dynamodb::types::AttributeDefinition::builder()
                            .attribute_name(attribute)
                            .attribute_type("S".into())
                            .build()
                            .unwrap(),
                    )
                    .key_schema(
                        aws_sdk_dynamodb::types::KeySchemaElement::builder()
                            .attribute_name(attribute)
                            .key_type(kind.into())
                            .build()
                            .unwrap(),
                    );
            }
            request.billing_mode("PAY_PER_REQUEST".into()).send().await.unwrap();
            let status = shell.run(&format!("table status --table {name} --output json")).json(1);
            let found = status["problems"].as_array().unwrap();
            assert_eq!(found.len(), problems, "{status}");
        }
    })
    .await;
}
