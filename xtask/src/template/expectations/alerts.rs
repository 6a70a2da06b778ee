//! Alerts: an option that grants and runs nothing until it is set.

use crate::template::property::{Property, holds, is};

pub(super) const ALERTS: &[Property] = &[
    is("/Parameters/Alerts/Default", r#""off""#, "without alerts nothing is read"),
    is("/Parameters/AlertsTo/Default", r#""""#, "alerts stay in the outbox"),
    is("/Parameters/AlertsSecret/NoEcho", "true", "a secret"),
    is(
        "/Conditions/DeliversAlerts",
        r#"{"Fn::Not": [{"Fn::Equals": [{"Ref": "AlertsTo"}, ""]}]}"#,
        "a parameter",
    ),
    is(
        "/Conditions/MakesAlerts",
        r#"{"Fn::Or": [{"Fn::Equals": [{"Ref": "Alerts"}, "on"]}, {"Condition": "DeliversAlerts"}]}"#,
        "what is delivered must be made",
    ),
    is(
        "/Parameters/AlertsTo/AllowedPattern",
        r#""^(https://.+|arn:[a-z-]+:(sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_.-]+|events:[a-z0-9-]+:[0-9]{12}:event-bus/[A-Za-z0-9_./-]+))?$""#,
        "a resource that is granted has no wildcard",
    ),
    is(
        "/Conditions/DeliversToArn",
        r#"{"Fn::And": [{"Condition": "DeliversAlerts"}, {"Fn::Equals": [{"Ref": "AlertsSecret"}, ""]}]}"#,
        "a URL, which has a secret, is no resource",
    ),
    is("/Resources/AlertsSchedule/Type", r#""AWS::Events::Rule""#, "a quiet table has no batch"),
    is("/Resources/AlertsSchedule/Condition", r#""DeliversAlerts""#, "an option"),
    is(
        "/Resources/AlertsSchedule/Properties/ScheduleExpression",
        r#""rate(5 minutes)""#,
        "docs/alerts.md says so",
    ),
    is(
        "/Resources/AlertsSchedule/Properties/Targets/0/Arn",
        r#"{"Fn::GetAtt": ["Processor", "Arn"]}"#,
        "the processor has the outbox",
    ),
    holds(
        "/Resources/AlertsSchedule/Properties/Targets/0/Input",
        r#"{"Records": []}"#,
        "the processor reads stream events",
    ),
    is("/Resources/AlertsSchedulePermission/Condition", r#""DeliversAlerts""#, "an option"),
    is(
        "/Resources/AlertsSchedulePermission/Properties",
        r#"{
            "Action": "lambda:InvokeFunction",
            "FunctionName": {"Ref": "Processor"},
            "Principal": "events.amazonaws.com",
            "SourceArn": {"Fn::GetAtt": ["AlertsSchedule", "Arn"]}
        }"#,
        "only this rule invokes",
    ),
    is("/Resources/AlertsGivenUpAlarm/Condition", r#""DeliversAlerts""#, "an option"),
];
