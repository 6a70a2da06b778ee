from collections.abc import Awaitable, Generator, Iterable, Mapping
from datetime import timedelta
from decimal import Decimal
from types import TracebackType
from typing import Any, Literal, TypedDict, final

from typing_extensions import Unpack

Amount = int | Decimal | str
"""An amount of a limit: tokens, or money in the currency's unit. Exact, so no ``float`` with an exponent."""

class Settings(TypedDict, total=False):
    limits: Iterable[str]
    """The limits of requests that bring none, like ``rpm=100/min`` or ``usd=200/month``."""
    leasing: Literal["strict", "write_behind"] | None
    """Takes tokens ahead of need, to decide in memory. ``strict`` debits them first, and never exceeds a
    limit; ``write_behind`` debits them afterwards, and may exceed one by ``threshold`` per process."""
    threshold: int
    """For ``write_behind``: the tokens of a limit that are handed out before they are debited."""
    on_unavailable: Literal["allow", "deny", "local"]
    """The decision while the store is unavailable."""
    deadline: timedelta | None
    """The time in which the store must decide."""
    shadow: bool
    """Only watch: grant what would be refused, and say so by ``Permit.shadowed``."""

class Options(TypedDict, total=False):
    limits: list[str]
    """The limits of the bucket, which win over stored ones."""
    parent: str | None
    """Takes from the bucket of this parent too."""
    no_cascade: bool
    """Takes from no parent, whatever the entity's record says."""
    parent_limits: list[str]
    """The limits of the parent, if they differ."""
    wait: timedelta | None
    """Waits for tokens this long, in order of arrival."""
    deadline: timedelta | None
    """The time in which the store must decide this request."""

def memory(**settings: Unpack[Settings]) -> Limiter:
    """A limiter whose balances are in this process: for tests and first steps."""

def dynamodb(
    table: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    **settings: Unpack[Settings],
) -> Limiter:
    """A limiter on a DynamoDB table. Region and credentials come from the AWS environment."""

def redis(url: str, **settings: Unpack[Settings]) -> Limiter:
    """A limiter on a Redis server, by its URL: ``redis://127.0.0.1:6379``."""

@final
class Limiter:
    """Takes tokens of several limits at once, or none. It may be shared by threads and event loops, but
    not by processes: make one in each, after a fork."""

    def acquire(
        self,
        entity: str,
        resource: str,
        consume: Mapping[str, Amount],
        **options: Unpack[Options],
    ) -> Acquire:
        """A request for tokens: ``await`` it, or enter it by ``async with`` or ``with``."""

    def acquire_sync(
        self,
        entity: str,
        resource: str,
        consume: Mapping[str, Amount],
        **options: Unpack[Options],
    ) -> Permit:
        """Takes the tokens, for code without an event loop."""

    def prepare(self, request: Acquire, /) -> Awaitable[Prepared]:
        """Checks a request once, to make it many times from leased tokens."""

    def peek(
        self, entity: str, resource: str, *, limits: list[str] = ...
    ) -> Awaitable[list[LimitStatus]]:
        """The status of all limits of a bucket, by one read; takes nothing."""

    def close(self, timeout: timedelta = ...) -> Awaitable[None]:
        """Gives leased tokens back to the store."""

    def close_sync(self, timeout: timedelta = ...) -> None:
        """As ``close``, for code without an event loop."""

@final
class Acquire:
    """A request for tokens. If the body of a context raises, everything is given back: the work did not
    happen. Cancelling the task takes nothing."""

    def __await__(self) -> Generator[Any, None, Permit]: ...
    async def __aenter__(self) -> Permit: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def __enter__(self) -> Permit: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def sync(self) -> Permit:
        """Takes the tokens, for code without an event loop."""

@final
class Permit:
    """Tokens that were taken before the work starts. Dropping it keeps them taken."""

    def adjust(self, **by: Amount) -> Awaitable[None]:
        """Adds amounts to the consumption, in one write; negative ones are given back. Never refused: a
        balance may go below zero."""

    def adjust_sync(self, **by: Amount) -> None: ...
    def correct_to(self, **to: Amount) -> Awaitable[None]:
        """Corrects the consumption to these amounts, in one write: the cost is known. Limits that are not
        named stay as they are."""

    def correct_to_sync(self, **to: Amount) -> None: ...
    def release(self) -> Awaitable[None]:
        """Gives back everything, once: the work did not happen."""

    def release_sync(self) -> None: ...
    @property
    def remaining(self) -> list[LimitStatus]:
        """The balances of the requested limits. The list is empty if the store did not decide."""

    @property
    def degraded(self) -> bool:
        """True if the store did not decide: it was unavailable. Then nothing can be corrected."""

    @property
    def shadowed(self) -> bool:
        """True if the limiter only watches, and would have refused. Then nothing was taken."""

@final
class Prepared:
    """A request to a limiter that leases, checked once."""

    def try_acquire(self, entity: str | None = None, /) -> bool:
        """Takes the tokens if this process holds them; never waits. ``False``: it does not, and leases more
        in the background; ``await acquire()`` waits for them."""

    def acquire(self, entity: str | None = None, /) -> Awaitable[Permit]:
        """Takes the tokens; waits for the store if this process does not hold them."""

@final
class LimitStatus:
    """A limit of a bucket: its rule, and the amount that is left."""

    @property
    def entity(self) -> str: ...
    @property
    def limit(self) -> str: ...
    @property
    def rule(self) -> str:
        """The limit with its rule, like ``rpm=100/min``."""

    @property
    def available(self) -> Decimal:
        """Tokens, or money in the currency's unit; negative while there is a debt."""

    @property
    def violated(self) -> bool:
        """True if the limit does not have the amount that was asked for."""

class SluicegateError(Exception):
    """The base of all exceptions here, but for ``InvalidRequestError``."""

class LimitExceededError(SluicegateError):
    """A limit is short."""

    retry_after: timedelta | None
    """The time after which to ask again; ``None``: waiting does not help."""
    limits: list[LimitStatus]

class NeverAdmissibleError(SluicegateError):
    """The request asks for more than a full bucket holds."""

    limits: list[LimitStatus]

class ContendedError(SluicegateError):
    """Too many other writers at once: nothing was taken."""

class UnavailableError(SluicegateError):
    """The store did not answer. After an adjustment, it may be repeated."""

class SetupError(SluicegateError):
    """Permissions, the table or an item must be repaired first."""

class InvalidRequestError(ValueError):
    """A name, an amount or a limit is not valid."""
