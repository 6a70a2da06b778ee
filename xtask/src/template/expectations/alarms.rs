//! Whatever goes wrong must be seen by somebody.

use crate::template::properties::{Property, is};

pub(super) const ALARMS: &[Property] = &[
    is(
        "/Resources/IteratorAgeAlarm/Type",
        r#""AWS::CloudWatch::Alarm""#,
        "endless retries must be seen",
    ),
    is(
        "/Resources/IteratorAgeAlarm/Properties/Namespace",
        r#""AWS/Lambda""#,
        "endless retries must be seen",
    ),
    is(
        "/Resources/IteratorAgeAlarm/Properties/MetricName",
        r#""IteratorAge""#,
        "endless retries must be seen",
    ),
    is(
        "/Resources/IteratorAgeAlarm/Properties/Dimensions",
        r#"[{"Name": "FunctionName", "Value": {"Ref": "Processor"}}]"#,
        "of this stack",
    ),
    is(
        "/Resources/IteratorAgeAlarm/Properties/Statistic",
        r#""Maximum""#,
        "endless retries must be seen",
    ),
    is("/Resources/IteratorAgeAlarm/Properties/AlarmActions", HEARD, "somebody hears of it"),
    is(
        "/Resources/IteratorAgeAlarm/Properties/TreatMissingData",
        r#""notBreaching""#,
        "nobody acquires, nothing is measured",
    ),
    is(
        "/Resources/QuarantineAlarm/Type",
        r#""AWS::CloudWatch::Alarm""#,
        "what is not counted must be seen",
    ),
    is(
        "/Resources/QuarantineAlarm/Properties/Namespace",
        r#""Sluicegate""#,
        "what is not counted must be seen",
    ),
    is(
        "/Resources/QuarantineAlarm/Properties/MetricName",
        r#""Quarantined""#,
        "what is not counted must be seen",
    ),
    is(
        "/Resources/QuarantineAlarm/Properties/Dimensions",
        r#"[{"Name": "Table", "Value": {"Ref": "TableName"}}]"#,
        "of this stack",
    ),
    is(
        "/Resources/QuarantineAlarm/Properties/Statistic",
        r#""Sum""#,
        "what is not counted must be seen",
    ),
    is("/Resources/QuarantineAlarm/Properties/AlarmActions", HEARD, "somebody hears of it"),
    is(
        "/Resources/QuarantineAlarm/Properties/TreatMissingData",
        r#""notBreaching""#,
        "nobody acquires, nothing is measured",
    ),
    is(
        "/Resources/RetryableFailuresAlarm/Type",
        r#""AWS::CloudWatch::Alarm""#,
        "endless retries must be seen",
    ),
    is(
        "/Resources/RetryableFailuresAlarm/Properties/Namespace",
        r#""Sluicegate""#,
        "endless retries must be seen",
    ),
    is(
        "/Resources/RetryableFailuresAlarm/Properties/MetricName",
        r#""RetryableFailures""#,
        "endless retries must be seen",
    ),
    is(
        "/Resources/RetryableFailuresAlarm/Properties/Dimensions",
        r#"[{"Name": "Table", "Value": {"Ref": "TableName"}}]"#,
        "of this stack",
    ),
    is(
        "/Resources/RetryableFailuresAlarm/Properties/Statistic",
        r#""Sum""#,
        "endless retries must be seen",
    ),
    is("/Resources/RetryableFailuresAlarm/Properties/AlarmActions", HEARD, "somebody hears of it"),
    is(
        "/Resources/RetryableFailuresAlarm/Properties/TreatMissingData",
        r#""notBreaching""#,
        "nobody acquires, nothing is measured",
    ),
    is(
        "/Resources/ErrorsAlarm/Type",
        r#""AWS::CloudWatch::Alarm""#,
        "a broken deployment must be seen",
    ),
    is(
        "/Resources/ErrorsAlarm/Properties/Namespace",
        r#""AWS/Lambda""#,
        "a broken deployment must be seen",
    ),
    is(
        "/Resources/ErrorsAlarm/Properties/MetricName",
        r#""Errors""#,
        "a broken deployment must be seen",
    ),
    is(
        "/Resources/ErrorsAlarm/Properties/Dimensions",
        r#"[{"Name": "FunctionName", "Value": {"Ref": "Processor"}}]"#,
        "of this stack",
    ),
    is(
        "/Resources/ErrorsAlarm/Properties/Statistic",
        r#""Sum""#,
        "a broken deployment must be seen",
    ),
    is("/Resources/ErrorsAlarm/Properties/AlarmActions", HEARD, "somebody hears of it"),
    is(
        "/Resources/ErrorsAlarm/Properties/TreatMissingData",
        r#""notBreaching""#,
        "nobody acquires, nothing is measured",
    ),
    is(
        "/Resources/FunctionThrottlesAlarm/Type",
        r#""AWS::CloudWatch::Alarm""#,
        "the account's concurrency is shared",
    ),
    is(
        "/Resources/FunctionThrottlesAlarm/Properties/Namespace",
        r#""AWS/Lambda""#,
        "the account's concurrency is shared",
    ),
    is(
        "/Resources/FunctionThrottlesAlarm/Properties/MetricName",
        r#""Throttles""#,
        "the account's concurrency is shared",
    ),
    is(
        "/Resources/FunctionThrottlesAlarm/Properties/Dimensions",
        r#"[{"Name": "FunctionName", "Value": {"Ref": "Processor"}}]"#,
        "of this stack",
    ),
    is(
        "/Resources/FunctionThrottlesAlarm/Properties/Statistic",
        r#""Sum""#,
        "the account's concurrency is shared",
    ),
    is("/Resources/FunctionThrottlesAlarm/Properties/AlarmActions", HEARD, "somebody hears of it"),
    is(
        "/Resources/FunctionThrottlesAlarm/Properties/TreatMissingData",
        r#""notBreaching""#,
        "nobody acquires, nothing is measured",
    ),
    is(
        "/Resources/DurationAlarm/Type",
        r#""AWS::CloudWatch::Alarm""#,
        "a batch that times out is counted by nobody",
    ),
    is(
        "/Resources/DurationAlarm/Properties/Namespace",
        r#""AWS/Lambda""#,
        "a batch that times out is counted by nobody",
    ),
    is(
        "/Resources/DurationAlarm/Properties/MetricName",
        r#""Duration""#,
        "a batch that times out is counted by nobody",
    ),
    is(
        "/Resources/DurationAlarm/Properties/Dimensions",
        r#"[{"Name": "FunctionName", "Value": {"Ref": "Processor"}}]"#,
        "of this stack",
    ),
    is(
        "/Resources/DurationAlarm/Properties/ExtendedStatistic",
        r#""p99""#,
        "a batch that times out is counted by nobody",
    ),
    is("/Resources/DurationAlarm/Properties/AlarmActions", HEARD, "somebody hears of it"),
    is(
        "/Resources/DurationAlarm/Properties/TreatMissingData",
        r#""notBreaching""#,
        "nobody acquires, nothing is measured",
    ),
    is(
        "/Resources/WriteThrottlesAlarm/Type",
        r#""AWS::CloudWatch::Alarm""#,
        "a hot bucket must be seen",
    ),
    is(
        "/Resources/WriteThrottlesAlarm/Properties/Namespace",
        r#""AWS/DynamoDB""#,
        "a hot bucket must be seen",
    ),
    is(
        "/Resources/WriteThrottlesAlarm/Properties/MetricName",
        r#""WriteThrottleEvents""#,
        "a hot bucket must be seen",
    ),
    is(
        "/Resources/WriteThrottlesAlarm/Properties/Dimensions",
        r#"[{"Name": "TableName", "Value": {"Ref": "Table"}}]"#,
        "of this stack",
    ),
    is(
        "/Resources/WriteThrottlesAlarm/Properties/Statistic",
        r#""Sum""#,
        "a hot bucket must be seen",
    ),
    is("/Resources/WriteThrottlesAlarm/Properties/AlarmActions", HEARD, "somebody hears of it"),
    is(
        "/Resources/WriteThrottlesAlarm/Properties/TreatMissingData",
        r#""notBreaching""#,
        "nobody acquires, nothing is measured",
    ),
];

const HEARD: &str =
    r#"{"Fn::If": ["HasAlarmTopic", [{"Ref": "AlarmTopicArn"}], {"Ref": "AWS::NoValue"}]}"#;
