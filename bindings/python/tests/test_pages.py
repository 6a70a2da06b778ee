"""The examples of the pages for Python."""

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def run(program: str, **settings: str) -> str:
    settings |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "AWS_REGION": "us-east-1"}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_way_from_zae_limiter_runs() -> None:
    (program,) = blocks("from-zae-limiter.md", "python")
    run(program)


def test_the_callbacks_of_the_page_are_made_from_python_and_from_the_environment() -> None:
    (program,), (lines,) = blocks("litellm.md", "python"), blocks("litellm.md", "sh")
    settings = dict(line.replace('"', "").split("=", 1) for line in lines.splitlines())
    shown = "print(rates._counts, budget._counts, sluicegate.litellm.handler._counts)"
    assert run(f"{program}\n{shown}", **settings) == "['rpm', 'tpm'] ['usd'] ['rpm', 'tpm', 'usd']\n"
    assert "callbacks: sluicegate.litellm.handler" in blocks("litellm.md", "yaml")[0]
