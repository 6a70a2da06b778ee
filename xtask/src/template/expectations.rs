//! The properties that this project needs of the template, as data.
//!
//! Whole objects are compared if an addition would be as wrong as a removal: policies, keys, index
//! projections.

mod alarms;
mod alerts;
mod policies;

use super::property::{Property, absent, holds, is};

pub(super) const PROPERTIES: &[&[Property]] = &[
    TABLE,
    FUNCTION,
    MAPPING,
    ROLE,
    OPERATIONS,
    alarms::ALARMS,
    alerts::ALERTS,
    policies::POLICIES,
];

const TABLE: &[Property] = &[
    is(
        "/Parameters/TableName/Default",
        r#""sluicegate-limits""#,
        "the name that every program assumes",
    ),
    is("/Resources/Table/Type", r#""AWS::DynamoDB::Table""#, "one table"),
    is(
        "/Conditions/MakesTable",
        r#"{"Fn::Equals": [{"Ref": "StreamArn"}, ""]}"#,
        "unless another stack made it",
    ),
    is(
        "/Conditions/IsProtected",
        r#"{"Fn::Equals": [{"Ref": "DeletionProtection"}, "true"]}"#,
        "a parameter",
    ),
    is(
        "/Conditions/IsRecoverable",
        r#"{"Fn::Equals": [{"Ref": "PointInTimeRecovery"}, "true"]}"#,
        "a parameter",
    ),
    is("/Resources/Table/DeletionPolicy", r#""Retain""#, "usage cannot be rebuilt"),
    is("/Resources/Table/UpdateReplacePolicy", r#""Retain""#, "usage cannot be rebuilt"),
    is("/Resources/Table/Properties/TableName", r#"{"Ref": "TableName"}"#, "a parameter"),
    is("/Resources/Table/Properties/BillingMode", r#""PAY_PER_REQUEST""#, "no capacity to plan"),
    is(
        "/Resources/Table/Properties/DeletionProtectionEnabled",
        r#"{"Fn::If": ["IsProtected", true, false]}"#,
        "a parameter",
    ),
    is("/Parameters/DeletionProtection/Default", r#""true""#, "protected unless told otherwise"),
    is(
        "/Resources/Table/Properties/PointInTimeRecoverySpecification",
        r#"{"PointInTimeRecoveryEnabled": {"Fn::If": ["IsRecoverable", true, false]}}"#,
        "usage cannot be rebuilt",
    ),
    is("/Parameters/PointInTimeRecovery/Default", r#""true""#, "usage cannot be rebuilt"),
    is(
        "/Resources/Table/Properties/KeySchema",
        r#"[{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}]"#,
        "the keys of the schema",
    ),
    is(
        "/Resources/Table/Properties/AttributeDefinitions",
        r#"[
            {"AttributeName": "PK", "AttributeType": "S"},
            {"AttributeName": "SK", "AttributeType": "S"},
            {"AttributeName": "GSI1PK", "AttributeType": "S"},
            {"AttributeName": "GSI1SK", "AttributeType": "S"},
            {"AttributeName": "GSI2PK", "AttributeType": "S"},
            {"AttributeName": "GSI2SK", "AttributeType": "S"}
        ]"#,
        "every key is a string",
    ),
    is(
        "/Resources/Table/Properties/GlobalSecondaryIndexes",
        r#"[
            {
                "IndexName": "GSI1",
                "KeySchema": [
                    {"AttributeName": "GSI1PK", "KeyType": "HASH"},
                    {"AttributeName": "GSI1SK", "KeyType": "RANGE"}
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"}
            },
            {
                "IndexName": "GSI2",
                "KeySchema": [
                    {"AttributeName": "GSI2PK", "KeyType": "HASH"},
                    {"AttributeName": "GSI2SK", "KeyType": "RANGE"}
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"}
            }
        ]"#,
        "another projection makes every acquire pay a second write",
    ),
    absent("/Resources/Table/Properties/LocalSecondaryIndexes", "they bound an entity to 10 GB"),
    absent(
        "/Resources/Table/Properties/SSESpecification",
        "the default encryption costs nothing per request",
    ),
    is(
        "/Resources/Table/Properties/TimeToLiveSpecification",
        r#"{"AttributeName": "ttl", "Enabled": true}"#,
        "full buckets and old windows expire",
    ),
    is(
        "/Resources/Table/Properties/StreamSpecification",
        r#"{"StreamViewType": "NEW_AND_OLD_IMAGES"}"#,
        "a delta is the difference of both images",
    ),
];

const FUNCTION: &[Property] = &[
    is("/Resources/Processor/Type", r#""AWS::Serverless::Function""#, "SAM builds it"),
    is("/Resources/Processor/Properties/Runtime", r#""provided.al2023""#, "the glibc of the build"),
    is("/Resources/Processor/Properties/Handler", r#""bootstrap""#, "the name of the binary"),
    is(
        "/Resources/Processor/Properties/CodeUri",
        r#""functions/processor""#,
        "the package to build",
    ),
    is("/Resources/Processor/Metadata/BuildMethod", r#""rust-cargolambda""#, "how SAM builds Rust"),
    is(
        "/Resources/Processor/Metadata/BuildProperties/Binary",
        r#""bootstrap""#,
        "the binary to package",
    ),
    is(
        "/Resources/Processor/Properties/Architectures",
        r#"[{"Ref": "Architecture"}]"#,
        "a parameter",
    ),
    is("/Parameters/Architecture/Default", r#""arm64""#, "cheaper than x86_64"),
    is(
        "/Resources/Processor/Properties/Environment/Variables",
        r#"{
            "TABLE_NAME": {"Ref": "TableName"},
            "USAGE_WINDOWS": {"Ref": "UsageWindows"},
            "USAGE_TTL_DAYS": {"Ref": "UsageTtlDays"},
            "HOME_REGION": {"Ref": "HomeRegion"},
            "SHARDED_BUCKETS": {"Ref": "ShardedBuckets"},
            "ALERTS": {"Ref": "Alerts"},
            "ALERTS_TO": {"Ref": "AlertsTo"},
            "ALERTS_SECRET": {"Ref": "AlertsSecret"}
        }"#,
        "the settings of the processor",
    ),
    is("/Parameters/UsageWindows/Default", r#""hour,day""#, "the default of the processor"),
    is("/Parameters/ShardedBuckets/Default", r#""off""#, "the default of the processor"),
    is(
        "/Conditions/CountsShards",
        r#"{"Fn::Equals": [{"Ref": "ShardedBuckets"}, "on"]}"#,
        "a parameter",
    ),
    is("/Parameters/UsageTtlDays/Default", r#""90""#, "the default of the processor"),
    is(
        "/Resources/Processor/Properties/Role",
        r#"{"Fn::GetAtt": ["ProcessorRole", "Arn"]}"#,
        "least privilege",
    ),
    absent(
        "/Resources/Processor/Properties/Policies",
        "least privilege is written out in ProcessorRole",
    ),
    absent(
        "/Resources/Processor/Properties/DeadLetterQueue",
        "nothing is given up outside of the table",
    ),
];

const MAPPING: &[Property] = &[
    is("/Resources/Processor/Properties/Events/Stream/Type", r#""DynamoDB""#, "the table's stream"),
    is(
        "/Resources/Processor/Properties/Events/Stream/Properties/Stream",
        r#"{"Fn::If": ["MakesTable", {"Fn::GetAtt": ["Table", "StreamArn"]}, {"Ref": "StreamArn"}]}"#,
        "the table's stream",
    ),
    is(
        "/Resources/Processor/Properties/Events/Stream/Properties/StartingPosition",
        r#""TRIM_HORIZON""#,
        "a switch of processors skips nothing",
    ),
    is(
        "/Resources/Processor/Properties/Events/Stream/Properties/FunctionResponseTypes",
        r#"["ReportBatchItemFailures"]"#,
        "what was counted is not retried",
    ),
    is(
        "/Resources/Processor/Properties/Events/Stream/Properties/BisectBatchOnFunctionError",
        "true",
        "a batch that is too much is halved",
    ),
    is(
        "/Resources/Processor/Properties/Events/Stream/Properties/MaximumRetryAttempts",
        "-1",
        "nothing is given up silently",
    ),
    is(
        "/Resources/Processor/Properties/Events/Stream/Properties/MaximumRecordAgeInSeconds",
        "-1",
        "nothing is given up silently",
    ),
    absent(
        "/Resources/Processor/Properties/Events/Stream/Properties/DestinationConfig",
        "nothing is given up silently",
    ),
    absent("/Resources/Processor/Properties/Events/Stream/Properties/Enabled", "it runs"),
    is(
        "/Resources/Processor/Properties/Events/Stream/Properties/BatchSize",
        r#"{"Ref": "BatchSize"}"#,
        "a parameter",
    ),
    is(
        "/Resources/Processor/Properties/Events/Stream/Properties/MaximumBatchingWindowInSeconds",
        r#"{"Ref": "BatchWindowSeconds"}"#,
        "a parameter",
    ),
    is(
        "/Resources/Processor/Properties/Events/Stream/Properties/ParallelizationFactor",
        r#"{"Ref": "ParallelizationFactor"}"#,
        "a parameter",
    ),
    holds(
        "/Resources/Processor/Properties/Events/Stream/Properties/FilterCriteria/Filters/0/Pattern",
        r##"{"dynamodb": {"Keys": {"SK": {"S": [{"prefix": "#BUCKET#"}]}}}}"##,
        "the processor's own writes must not invoke it",
    ),
    is(
        "/Resources/Processor/Properties/Events/Stream/Properties/FilterCriteria/Filters/1/Fn::If",
        r##"[
            "CountsShards",
            {"Pattern": "{\"dynamodb\":{\"Keys\":{\"SK\":{\"S\":[\"#STATE\"]}}}}"},
            {"Ref": "AWS::NoValue"}
        ]"##,
        "shards of buckets are counted on demand",
    ),
    absent(
        "/Resources/Processor/Properties/Events/Stream/Properties/FilterCriteria/Filters/2",
        "filters are alternatives: a second one lets more through",
    ),
];

const ROLE: &[Property] = &[
    is("/Resources/ProcessorRole/Type", r#""AWS::IAM::Role""#, "least privilege"),
    is(
        "/Resources/ProcessorRole/Properties/AssumeRolePolicyDocument/Statement",
        r#"[{
            "Effect": "Allow",
            "Principal": {"Service": "lambda.amazonaws.com"},
            "Action": "sts:AssumeRole"
        }]"#,
        "only Lambda takes the role",
    ),
    is(
        "/Resources/ProcessorRole/Properties/Policies/0/PolicyDocument/Statement",
        r#"[
            {
                "Sid": "WriteUsage",
                "Effect": "Allow",
                "Action": ["dynamodb:PutItem", "dynamodb:UpdateItem"],
                "Resource": {"Fn::If": ["MakesTable", {"Fn::GetAtt": ["Table", "Arn"]}, {"Fn::Select": [0, {"Fn::Split": ["/stream/", {"Ref": "StreamArn"}]}]}]}
            },
            {
                "Sid": "DescribeTable",
                "Effect": "Allow",
                "Action": "dynamodb:DescribeTable",
                "Resource": {"Fn::If": ["MakesTable", {"Fn::GetAtt": ["Table", "Arn"]}, {"Fn::Select": [0, {"Fn::Split": ["/stream/", {"Ref": "StreamArn"}]}]}]}
            },
            {"Fn::If": ["MakesAlerts", {
                "Sid": "ReadAlerts",
                "Effect": "Allow",
                "Action": "dynamodb:Query",
                "Resource": {"Fn::If": ["MakesTable", {"Fn::GetAtt": ["Table", "Arn"]}, {"Fn::Select": [0, {"Fn::Split": ["/stream/", {"Ref": "StreamArn"}]}]}]},
                "Condition": {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["ALERTS#"]}}
            }, {"Ref": "AWS::NoValue"}]},
            {"Fn::If": ["DeliversAlerts", {
                "Sid": "CloseAlerts",
                "Effect": "Allow",
                "Action": "dynamodb:DeleteItem",
                "Resource": {"Fn::If": ["MakesTable", {"Fn::GetAtt": ["Table", "Arn"]}, {"Fn::Select": [0, {"Fn::Split": ["/stream/", {"Ref": "StreamArn"}]}]}]},
                "Condition": {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["ALERTS#"]}}
            }, {"Ref": "AWS::NoValue"}]},
            {"Fn::If": ["DeliversToArn", {
                "Sid": "DeliverAlerts",
                "Effect": "Allow",
                "Action": ["events:PutEvents", "sns:Publish"],
                "Resource": {"Ref": "AlertsTo"}
            }, {"Ref": "AWS::NoValue"}]},
            {
                "Sid": "ReadStream",
                "Effect": "Allow",
                "Action": [
                    "dynamodb:DescribeStream",
                    "dynamodb:GetRecords",
                    "dynamodb:GetShardIterator",
                    "dynamodb:ListStreams"
                ],
                "Resource": {"Fn::If": ["MakesTable", {"Fn::GetAtt": ["Table", "StreamArn"]}, {"Ref": "StreamArn"}]}
            },
            {
                "Sid": "WriteLogs",
                "Effect": "Allow",
                "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
                "Resource": {"Fn::GetAtt": ["ProcessorLogs", "Arn"]}
            }
        ]"#,
        "least privilege",
    ),
    absent("/Resources/ProcessorRole/Properties/Policies/1", "least privilege"),
    absent("/Resources/ProcessorRole/Properties/ManagedPolicyArns", "least privilege"),
];

const OPERATIONS: &[Property] = &[
    is(
        "/Resources/Processor/Properties/LoggingConfig/LogGroup",
        r#"{"Ref": "ProcessorLogs"}"#,
        "a group that Lambda makes keeps logs for ever",
    ),
    is(
        "/Resources/ProcessorLogs/Properties/RetentionInDays",
        r#"{"Ref": "LogRetentionDays"}"#,
        "a parameter",
    ),
    is("/Outputs/TableName/Value", r#"{"Ref": "TableName"}"#, "for producers"),
    is(
        "/Outputs/StreamArn/Value",
        r#"{"Fn::If": ["MakesTable", {"Fn::GetAtt": ["Table", "StreamArn"]}, {"Ref": "StreamArn"}]}"#,
        "for tools",
    ),
    is("/Outputs/ProcessorArn/Value", r#"{"Fn::GetAtt": ["Processor", "Arn"]}"#, "for tools"),
];
