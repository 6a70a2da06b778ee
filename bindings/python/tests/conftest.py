"""The environment of all tests, set before any limiter is made: the AWS SDK reads it in its own threads."""

import os

# The embedded engine takes any credentials.
for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
    os.environ[f"AWS_{name}"] = "test"
os.environ["AWS_REGION"] = "us-east-1"
