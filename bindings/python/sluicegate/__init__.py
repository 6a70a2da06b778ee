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
    AmbiguousError,
    Budget,
    Call,
    ContendedError,
    Entity,
    InvalidLimitError,
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

from ._options import Options, Settings

Amount = int | Decimal | str

__all__ = [
    "Acquire",
    "AmbiguousError",
    "Amount",
    "Budget",
    "Call",
    "ContendedError",
    "Entity",
    "InvalidLimitError",
    "InvalidRequestError",
    "Limit",
    "LimitExceededError",
    "LimitStatus",
    "Limiter",
    "Local",
    "NeverAdmissibleError",
    "Options",
    "Permit",
    "Prepared",
    "PriceBook",
    "Settings",
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
