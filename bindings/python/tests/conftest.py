"""A DynamoDB for the tests: the embedded engine, in a process that ends with them."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def endpoint_url() -> Iterator[str]:
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_REGION="us-east-1")
    command = [os.environ["SLUICEGATE_BINARY"], "local", "--port", "0"]
    engine = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert engine.stderr is not None
    line = next(line for line in engine.stderr if "http://" in line)
    yield "http://" + line.split("http://")[1].split()[0].strip(";,")
    engine.send_signal(signal.SIGINT)
    engine.wait()
