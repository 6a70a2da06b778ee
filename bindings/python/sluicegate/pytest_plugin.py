"""The fixture ``sluicegate_local``, for the tests of a program that uses the package."""

from collections.abc import Iterator

import pytest

import sluicegate


@pytest.fixture(scope="session")
def sluicegate_local() -> Iterator[sluicegate.Local]:
    """The embedded engine, for all tests of a session: ``sluicegate_local.limiter()``."""
    with sluicegate.local() as engine:
        yield engine
