//! The permissions of producers, readers and operators: whole statements, so that an addition is
//! seen.

use crate::template::property::{Property, is};

pub(super) const POLICIES: &[Property] = &[
    is(
        "/Resources/ProducerPolicy/Properties/PolicyDocument/Statement",
        r#"[{
            "Sid": "Acquire",
            "Effect": "Allow",
            "Action": [
                "dynamodb:BatchGetItem",
                "dynamodb:GetItem",
                "dynamodb:PutItem",
                "dynamodb:UpdateItem"
            ],
            "Resource": {"Fn::GetAtt": ["Table", "Arn"]}
        }]"#,
        "least privilege",
    ),
    is(
        "/Resources/ReaderPolicy/Properties/PolicyDocument/Statement",
        r#"[
            {
                "Sid": "Read",
                "Effect": "Allow",
                "Action": [
                    "dynamodb:BatchGetItem",
                    "dynamodb:DescribeTable",
                    "dynamodb:DescribeTimeToLive",
                    "dynamodb:GetItem",
                    "dynamodb:Query"
                ],
                "Resource": [
                    {"Fn::GetAtt": ["Table", "Arn"]},
                    {"Fn::Sub": "${Table.Arn}/index/*"}
                ]
            },
            {
                "Sid": "FindResources",
                "Effect": "Allow",
                "Action": "dynamodb:Scan",
                "Resource": {"Fn::Sub": "${Table.Arn}/index/GSI2"}
            },
            {
                "Sid": "ReadStream",
                "Effect": "Allow",
                "Action": [
                    "dynamodb:DescribeStream",
                    "dynamodb:GetRecords",
                    "dynamodb:GetShardIterator"
                ],
                "Resource": {"Fn::GetAtt": ["Table", "StreamArn"]}
            }
        ]"#,
        "least privilege",
    ),
    is(
        "/Resources/OperatorPolicy/Properties/PolicyDocument/Statement",
        r#"[{
            "Sid": "Operate",
            "Effect": "Allow",
            "Action": [
                "dynamodb:BatchGetItem",
                "dynamodb:DeleteItem",
                "dynamodb:GetItem",
                "dynamodb:PutItem",
                "dynamodb:Scan",
                "dynamodb:UpdateItem"
            ],
            "Resource": {"Fn::GetAtt": ["Table", "Arn"]}
        }]"#,
        "least privilege",
    ),
];
