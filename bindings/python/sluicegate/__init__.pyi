from collections.abc import Generator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from os import PathLike
from types import TracebackType
from typing import Any, Generic, TypeVar, final

from typing_extensions import Self, Unpack

from ._options import Options as Options
from ._options import Settings as Settings

Amount = int | Decimal | str
"""An amount of a limit: tokens, or money in the currency's unit. Exact, so no ``float``."""

T_co = TypeVar("T_co", covariant=True)

def memory(**settings: Unpack[Settings]) -> Limiter:
    """A limiter whose balances are in this process: for tests and first steps. Its keywords are those of
    ``Settings``."""

def dynamodb(
    table: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    **settings: Unpack[Settings],
) -> Limiter:
    """A limiter on a DynamoDB table. Region and credentials come from the AWS environment. An
    ``endpoint_url`` on loopback needs no region."""

def redis(url: str, **settings: Unpack[Settings]) -> Limiter:
    """A limiter on a Redis server, by its URL: ``redis://127.0.0.1:6379``. One with ``rediss://`` encrypts
    connections and trusts the root certificates of the system, or those of ``SSL_CERT_FILE`` or
    ``SSL_CERT_DIR`` instead."""

def local(
    *, table: str = "sluicegate-limits", windows: str = "hour,day", data: str | PathLike[str] | None = None
) -> Local:
    """The embedded engine in this process, for tests and first steps, with its usage windows. It keeps
    nothing, unless ``data`` names a file."""

@final
class Call(Generic[T_co]):
    """A call that was not made yet. ``await`` it in a task, or make it by ``sync()``, once. A call that
    is dropped unmade is a ``RuntimeWarning``."""

    def __await__(self) -> Generator[Any, None, T_co]: ...
    def sync(self) -> T_co:
        """Makes the call and waits for its result, in code without an event loop."""

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
        """A request for tokens: ``await`` it, or enter it by ``async with`` or ``with``. Its keywords are
        those of ``Options``."""

    def try_acquire(
        self,
        entity: str,
        resource: str,
        consume: Mapping[str, Amount],
        **options: Unpack[Options],
    ) -> Permit | None:
        """Takes leased tokens that this process holds; never waits. ``None``: it does not hold them, and
        leases more in the background. Await the first request on a bucket."""

    def prepare(self, request: Acquire, /) -> Call[Prepared]:
        """Checks a request once, to make it many times from leased tokens."""

    def peek(
        self, entity: str, resource: str, *, limits: Sequence[Limit | str] = ...
    ) -> Call[list[LimitStatus]]:
        """The status of all limits of a bucket, by one read; takes nothing."""

    def create_table(self) -> Call[None]:
        """Creates the table in DynamoDB, if there is none of its name: on demand, with its indexes, its
        stream and TTL. The function that counts usage is deployed by ``template.yaml``."""

    def set_limits(
        self, limits: Sequence[Limit | str], *, entity: str | None = None, resource: str | None = None
    ) -> Call[list[Limit]]:
        """Stores limits for one entity and resource, for an entity, for a resource, or for all; others that
        are stored there stay. The limits that stand."""

    def delete_limits(
        self, names: Sequence[str], *, entity: str | None = None, resource: str | None = None
    ) -> Call[list[Limit]]:
        """Deletes stored limits by name. The limits that are left."""

    def stored_limits(
        self, *, entity: str | None = None, resource: str | None = None
    ) -> Call[list[Limit]]:
        """The limits that are stored at one level."""

    def put_entity(
        self, entity: str, *, parent: str | None = None, cascade: bool = True
    ) -> Call[None]:
        """Stores the parent of an entity, and if its requests take from the parent's bucket too."""

    def entity(self, entity: str) -> Call[Entity | None]:
        """The stored record of an entity."""

    def delete_entity(self, entity: str) -> Call[None]:
        """Deletes the stored record of an entity; its buckets and usage stay."""

    def usage(
        self,
        entity: str | None = None,
        resource: str | None = None,
        *,
        kind: str = "hour",
        since: datetime,
        until: datetime | None = None,
    ) -> Call[list[UsageWindow]]:
        """The usage windows of an entity, of a resource, or of both, that begin in a time; both with a
        time zone. ``kind`` is ``minute``, ``hour``, ``day``, ``week``, ``month``, ``year``, or a calendar
        like ``month@15/Europe/Berlin``."""

    def budget(self, entity: str, resource: str | None = None) -> Call[list[Budget]]:
        """The calendar limits of an entity, and those that count money."""

    @property
    def shadow(self) -> bool:
        """True if it only watches."""

    def close(self, timeout: timedelta = ...) -> Call[None]:
        """Gives leased tokens back to the store; the log has those for which that failed."""

@final
class Acquire:
    """A request for tokens: ``await`` it for a permit, or enter it. If the body of a context raises,
    everything is given back: the work did not happen. Cancelling the task takes nothing."""

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
        """Takes the tokens, in code without an event loop."""

@final
class Permit:
    """Tokens that were taken before the work starts. Dropping it keeps them taken."""

    def adjust(self, **by: Amount) -> Call[None]:
        """Adds amounts to the consumption, in one write; negative ones are given back. Never refused: a
        balance may go below zero. Limits that no bucket has are left out, with a warning in the log;
        if it has none of them, ``InvalidRequestError`` is raised."""

    def correct_to(self, **to: Amount) -> Call[None]:
        """Corrects the consumption to these amounts, in one write: the cost is known. Limits that are not
        named stay as they are. A negative amount is an ``InvalidRequestError``."""

    def release(self) -> Call[None]:
        """Gives back everything, once: the work did not happen."""

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

    def acquire(self, entity: str | None = None, /) -> Call[Permit]:
        """Takes the tokens; waits for the store if this process does not hold them."""

@final
class Local:
    """The embedded engine: a context in which its limiters work. Its end counts what was written."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def limiter(self, **settings: Unpack[Settings]) -> Limiter:
        """A limiter on its table."""

    @property
    def endpoint_url(self) -> str:
        """The endpoint of its DynamoDB, on loopback."""

    @property
    def table(self) -> str: ...

@final
class Limit:
    """A limit: a name, and an amount per period. A limit that is named after a currency counts money.
    Its text is like ``rpm=100/min,burst=200``, ``usd=200/month@15,tz=Europe/Berlin`` or
    ``files=5/never``."""

    def __init__(self, text: str) -> None: ...
    @staticmethod
    def per_second(name: str, amount: Amount, *, burst: Amount | None = None) -> Limit: ...
    @staticmethod
    def per_minute(name: str, amount: Amount, *, burst: Amount | None = None) -> Limit: ...
    @staticmethod
    def per_hour(name: str, amount: Amount, *, burst: Amount | None = None) -> Limit: ...
    @staticmethod
    def every(
        name: str, amount: Amount, period: timedelta, *, burst: Amount | None = None
    ) -> Limit:
        """An amount that refills evenly in each period of whole milliseconds."""

    @staticmethod
    def by_calendar(
        name: str, amount: Amount, calendar: str, *, tz: str | None = None, forgive_debt: bool = False
    ) -> Limit:
        """Full again when a period begins: ``day``, ``week``, ``month``, ``year``, or one with an anchor,
        like ``month@15``."""

    @staticmethod
    def quota(name: str, amount: Amount) -> Limit:
        """An amount once: it never refills."""

    @property
    def name(self) -> str: ...

@final
class LimitStatus:
    """A limit of a bucket: its rule, and the amount that is left."""

    def __new__(cls, entity: str, limit: str, rule: str, available: Decimal, violated: bool) -> LimitStatus: ...
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

@final
class Entity:
    """The stored record of an entity."""

    @property
    def entity(self) -> str: ...
    @property
    def parent(self) -> str | None: ...
    @property
    def cascade(self) -> bool:
        """True if its requests take from the parent's bucket too."""

@final
class UsageWindow:
    """The consumption of an entity of a resource in one window."""

    @property
    def entity(self) -> str: ...
    @property
    def resource(self) -> str: ...
    @property
    def start(self) -> datetime: ...
    @property
    def end(self) -> datetime: ...
    @property
    def consumed(self) -> dict[str, Decimal]:
        """Tokens, or money in the currency's unit, by limit: consumed less returned."""

@final
class Budget:
    """A calendar limit, or one that counts money, in its period."""

    @property
    def entity(self) -> str: ...
    @property
    def resource(self) -> str: ...
    @property
    def limit(self) -> str: ...
    @property
    def rule(self) -> str: ...
    @property
    def granted(self) -> Decimal:
        """Taken and not given back, calls in flight included."""

    @property
    def left(self) -> Decimal: ...
    @property
    def used(self) -> Decimal | None:
        """The sum of the usage windows of the period; ``None``: there are none, or one of them cannot
        be read."""

    @property
    def resets_at(self) -> datetime | None:
        """The next boundary, or the time when it is full; ``None``: never."""

    @property
    def used_up_at(self) -> datetime | None:
        """The time at which it is used up at the pace of the last seven days (of a new budget, of the
        days since its first use); ``None``: not before it resets, or not known."""

@final
class Usage:
    """The token counts of one request to a model."""

    def __init__(
        self, *, input: int = 0, output: int = 0, cached_input: int = 0, cache_write: int = 0
    ) -> None: ...
    @staticmethod
    def of_response(body: str | bytes | Mapping[str, Any]) -> Usage | None:
        """Reads a response of OpenAI, Anthropic or Amazon Bedrock; ``None``: it has no usage."""

    @property
    def input(self) -> int:
        """Input tokens that were neither read from the cache nor written to it."""

    @property
    def output(self) -> int:
        """Output tokens, reasoning included."""

    @property
    def cached_input(self) -> int: ...
    @property
    def cache_write(self) -> int: ...

@final
class PriceBook:
    """The prices of models, by date."""

    @staticmethod
    def from_json(text: str) -> PriceBook:
        """Reads the format of ``sluicegate-prices``."""

    @staticmethod
    def from_litellm(text: str) -> PriceBook:
        """Reads the price list that LiteLLM publishes."""

    def amounts(self, model: str, usage: Usage, *, at: datetime | None = None) -> dict[str, Decimal]:
        """The amounts of one request at a time, now unless given: ``rpm``, ``input``, ``output``, and the
        cost under the code of its currency, like ``usd``."""

    @property
    def models(self) -> list[str]: ...

class SluicegateError(Exception):
    """The base of all exceptions here, but for ``InvalidRequestError`` and ``InvalidLimitError``."""

class LimitExceededError(SluicegateError):
    """A limit is short."""

    retry_after: timedelta | None
    """The time after which to ask again; ``None``: waiting does not help."""
    limits: Sequence[LimitStatus]

class NeverAdmissibleError(SluicegateError):
    """The request asks for more than a full bucket holds."""

    limits: Sequence[LimitStatus]

class ContendedError(SluicegateError):
    """Too many other writers at once. A write that the deadline ended may still take its tokens."""

class UnavailableError(SluicegateError):
    """The store did not answer. A correction of a permit may be repeated: it is made once."""

class AmbiguousError(SluicegateError):
    """The answer to a correction was lost. It may have been made, and counts as made: repeat nothing."""

class SetupError(SluicegateError):
    """Permissions, the table or an item must be repaired first."""

class UnknownPriceError(SluicegateError):
    """The price book has no price of the model at that time."""

class InvalidRequestError(ValueError):
    """A name, an amount or a limit is not valid."""

class InvalidLimitError(InvalidRequestError):
    """A limit is unknown or not valid: the program must name others. Its client is not the cause."""
