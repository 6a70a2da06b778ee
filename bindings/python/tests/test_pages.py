"""The examples of the pages for Python."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("page", ["from-zae-limiter.md", "litellm.md"])
def test_the_examples_run(page: str) -> None:
    (program,) = blocks(page, "python")
    settings = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "AWS_REGION": "us-east-1"}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | settings,
    )
    assert done.returncode == 0, done.stderr


def test_the_environment_of_the_page_is_complete() -> None:
    (lines,) = blocks("litellm.md", "sh")
    settings = dict(line.split("=", 1) for line in lines.split("\n") if line)
    program = "import sluicegate.litellm; print(sluicegate.litellm.handler._counts)"
    environment = {name: value.strip('"') for name, value in settings.items()}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | environment | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    assert done.stdout == "['rpm', 'tpm', 'usd']\n", done.stderr
    (config,) = blocks("litellm.md", "yaml")
    assert "callbacks: sluicegate.litellm.handler" in config
