"""Rate limits and budgets for LLM gateways, on DynamoDB and Redis.

A limiter takes tokens of several limits at once, or none::

    import sluicegate

    limiter = sluicegate.dynamodb("sluicegate-limits", leasing="strict")
    async with limiter.acquire("user-123", "gpt-4", {"rpm": 1, "tpm": 800}) as permit:
        tokens = await call_the_model()
        await permit.correct_to(tpm=tokens)
"""

from decimal import Decimal

from ._native import (
    Acquire,
    ContendedError,
    InvalidRequestError,
    Limiter,
    LimitExceededError,
    LimitStatus,
    NeverAdmissibleError,
    Permit,
    Prepared,
    SetupError,
    SluicegateError,
    UnavailableError,
)

Amount = int | Decimal | str

__all__ = [
    "Acquire",
    "Amount",
    "ContendedError",
    "InvalidRequestError",
    "LimitExceededError",
    "LimitStatus",
    "Limiter",
    "NeverAdmissibleError",
    "Permit",
    "Prepared",
    "SetupError",
    "SluicegateError",
    "UnavailableError",
    "dynamodb",
    "memory",
    "redis",
]


def _settings(
    *,
    limits=(),
    leasing=None,
    threshold=100,
    on_unavailable="allow",
    deadline=None,
    shadow=False,
):
    return {
        "limits": list(limits),
        "leasing": leasing,
        "threshold": threshold,
        "on_unavailable": on_unavailable,
        "deadline": deadline,
        "shadow": shadow,
    }


def memory(**settings):
    """A limiter whose balances are in this process: for tests and first steps."""
    return Limiter._memory(_settings(**settings))


def dynamodb(table, *, endpoint_url=None, region=None, **settings):
    """A limiter on a DynamoDB table. Region and credentials come from the AWS environment."""
    return Limiter._dynamodb(table, endpoint_url, region, _settings(**settings))


def redis(url, **settings):
    """A limiter on a Redis server, by its URL: ``redis://127.0.0.1:6379``."""
    return Limiter._redis(url, _settings(**settings))
