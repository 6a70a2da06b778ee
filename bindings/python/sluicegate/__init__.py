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
    Budget,
    Call,
    ContendedError,
    Entity,
    InvalidRequestError,
    Limit,
    Limiter,
    LimitExceededError,
    LimitStatus,
    Local,
    NeverAdmissibleError,
    Permit,
    Prepared,
    PriceBook,
    SetupError,
    SluicegateError,
    UnavailableError,
    UnknownPriceError,
    Usage,
    UsageWindow,
    dynamodb,
    local,
    memory,
    redis,
)

Amount = int | Decimal | str

__all__ = [
    "Acquire",
    "Amount",
    "Budget",
    "Call",
    "ContendedError",
    "Entity",
    "InvalidRequestError",
    "Limit",
    "LimitExceededError",
    "LimitStatus",
    "Limiter",
    "Local",
    "NeverAdmissibleError",
    "Permit",
    "Prepared",
    "PriceBook",
    "SetupError",
    "SluicegateError",
    "UnavailableError",
    "UnknownPriceError",
    "Usage",
    "UsageWindow",
    "dynamodb",
    "local",
    "memory",
    "redis",
]
