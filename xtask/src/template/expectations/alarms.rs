//! The alarms: every failure must reach a person.

use crate::template::property::{Property, is};

/// Alarms, each with its metric, its statistic and the reason.
macro_rules! alarms {
    ($($name:literal: $namespace:literal $metric:literal of $dimension:ident, $kind:literal $statistic:literal, $why:literal;)*) => {
        &[$(
            is(concat!("/Resources/", $name, "/Type"), r#""AWS::CloudWatch::Alarm""#, $why),
            is(concat!("/Resources/", $name, "/Properties/Namespace"), concat!('"', $namespace, '"'), $why),
            is(concat!("/Resources/", $name, "/Properties/MetricName"), concat!('"', $metric, '"'), $why),
            is(concat!("/Resources/", $name, "/Properties/Dimensions"), $dimension, "of this stack"),
            is(concat!("/Resources/", $name, "/Properties/", $kind), concat!('"', $statistic, '"'), $why),
            is(concat!("/Resources/", $name, "/Properties/AlarmActions"), HEARD, "a person is told"),
            is(
                concat!("/Resources/", $name, "/Properties/TreatMissingData"),
                r#""notBreaching""#,
                "without acquires nothing is measured",
            ),
        )*]
    };
}

pub(super) const ALARMS: &[Property] = alarms! {
    "IteratorAgeAlarm": "AWS/Lambda" "IteratorAge" of FUNCTION, "Statistic" "Maximum", "endless retries must be seen";
    "QuarantineAlarm": "Sluicegate" "Quarantined" of METERED, "Statistic" "Sum", "what is not counted must be seen";
    "AlertsGivenUpAlarm": "Sluicegate" "AlertsGivenUp" of METERED, "Statistic" "Sum", "what is given up must be seen";
    "RetryableFailuresAlarm": "Sluicegate" "RetryableFailures" of METERED, "Statistic" "Sum", "endless retries must be seen";
    "ErrorsAlarm": "AWS/Lambda" "Errors" of FUNCTION, "Statistic" "Sum", "a broken deployment must be seen";
    "FunctionThrottlesAlarm": "AWS/Lambda" "Throttles" of FUNCTION, "Statistic" "Sum", "the account's concurrency is shared";
    "DurationAlarm": "AWS/Lambda" "Duration" of FUNCTION, "ExtendedStatistic" "p99", "a batch that times out is not counted";
    "WriteThrottlesAlarm": "AWS/DynamoDB" "WriteThrottleEvents" of TABLE, "Statistic" "Sum", "a hot bucket must be seen";
};

const FUNCTION: &str = r#"[{"Name": "FunctionName", "Value": {"Ref": "Processor"}}]"#;
const METERED: &str = r#"[{"Name": "Table", "Value": {"Ref": "TableName"}}]"#;
const TABLE: &str = r#"[{"Name": "TableName", "Value": {"Ref": "Table"}}]"#;
const HEARD: &str =
    r#"{"Fn::If": ["HasAlarmTopic", [{"Ref": "AlarmTopicArn"}], {"Ref": "AWS::NoValue"}]}"#;
