"""Rate limits for FastAPI, Starlette, or any other ASGI application; it needs none of them.

::

    app.add_middleware(
        RateLimitMiddleware,
        limiter=sluicegate.redis("redis://127.0.0.1", limits=["rpm=100/min"]),
        entity=lambda scope: header(scope, "x-user"),
        consume={"rpm": 1},
    )

Every response to a limited request whose balances are known has the fields ``RateLimit-Policy`` and
``RateLimit`` of draft-ietf-httpapi-ratelimit-headers-10, as the crate ``sluicegate-tower`` sends them. A
refusal is a problem (RFC 9457): 429 with ``Retry-After``; 400 if it asks for more than a limit ever
grants; 500 if a limit is unknown; 503 if the store did not decide, and tokens may have been taken.

A handler corrects the cost by ``scope["state"]["permit"]`` (``request.state.permit``), or gives it back by
``await permit.release()``. The middleware does neither: tokens stay taken if the handler raises, too.
There is no permit in a request that is not limited.

A limiter works in the process that made it. A server that loads the application before it forks
(``gunicorn --preload``) needs a function instead, ``limiter=lambda: sluicegate.redis(...)``: each worker
calls it at its first request.

Only HTTP requests are limited, no websockets.
"""

import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from decimal import Decimal
from functools import cache, lru_cache
from http import HTTPStatus
from typing import Any

import sluicegate
from sluicegate import Amount, Limit, Limiter, LimitStatus
from sluicegate._refusal import Refusal, refusal

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

# The problem type of the draft.
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
# The largest integer of a structured field has 15 digits.
INTEGER_MAX = 999_999_999_999_999
_EVEN = re.compile(r"(?P<count>\d*)(?P<unit>d|h|min|s|ms)")
_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000, "ms": 1}


def header(scope: Scope, name: str) -> str | None:
    """The first value of a request's header."""
    wanted = name.lower().encode()
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == wanted), None)


class RateLimitMiddleware:
    """Takes tokens before the application gets the request.

    ``limiter`` is a limiter, or a function that makes one: it is called at the first request.
    ``entity`` and ``resource`` get the ASGI scope; a request whose entity is ``None`` is not limited.
    ``consume`` is what each request takes, or a function of the scope. ``options`` are those of
    ``Limiter.acquire``.
    """

    def __init__(
        self,
        app: App,
        *,
        limiter: Limiter | Callable[[], Limiter],
        entity: Callable[[Scope], str | None],
        resource: Callable[[Scope], str] = lambda scope: "api",
        consume: Mapping[str, Amount] | Callable[[Scope], Mapping[str, Amount]],
        options: "sluicegate.Options | None" = None,
    ) -> None:
        self._app, self._limiter = app, cache(limiter if callable(limiter) else lambda: limiter)
        self._entity, self._resource, self._consume = entity, resource, consume
        self._options: sluicegate.Options = options or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        entity = self._entity(scope) if scope["type"] == "http" else None
        if entity is None:
            await self._app(scope, receive, send)
            return
        consume = self._consume(scope) if callable(self._consume) else self._consume
        limiter = self._limiter()
        try:
            permit = await limiter.acquire(entity, self._resource(scope), consume, **self._options)
        except (sluicegate.SluicegateError, ValueError) as error:
            await _respond(send, refusal(error), entity, consume)
            return
        # A server may give the requests of one connection the same dictionary.
        scope["state"] = {**scope.get("state", {}), "permit": permit}

        async def send_with_fields(message: Message) -> None:
            # The application may have corrected the cost. A limiter in shadow mode slows no client down.
            if message["type"] == "http.response.start" and not limiter.shadow:
                fields = rate_limit_fields(permit.remaining, entity)
                message = {**message, "headers": [*message.get("headers", ()), *fields]}
            await send(message)

        await self._app(scope, receive, send_with_fields)


async def _respond(send: Send, refused: Refusal, entity: str, consume: Mapping[str, Amount]) -> None:
    violated = [_policy(status, entity) for status in refused.violated]
    problem: dict[str, Any] = {"type": "about:blank", "title": HTTPStatus(refused.status).phrase}
    if refused.status == 429 and violated:
        problem["type"] = QUOTA_EXCEEDED
        problem["title"] = "Request cannot be satisfied as assigned quota has been exceeded"
    problem |= {"status": refused.status, "detail": refused.detail}
    if violated:
        problem["violated-policies"] = violated
    body = json.dumps(problem).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in refused.headers.items()]
    headers += rate_limit_fields(refused.limits, entity, consume, refused.retry_after_s)
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def rate_limit_fields(
    limits: Iterable[LimitStatus],
    entity: str,
    consume: Mapping[str, Amount] | None = None,
    retry_after_s: int | None = None,
) -> Headers:
    """The fields for the balances of a granted request of ``entity``, or of one that asked for ``consume``
    and may be repeated after ``retry_after_s``. Limits of a parent are ``parent:NAME``.

    ``t`` of a calendar limit is there only if the request has to wait for it.
    """
    policies, left = [], []
    for status in limits:
        burst, amount, period_ms = _rule(status.rule)
        name = _policy(status, entity)
        window = f";w={period_ms // 1_000}" if period_ms is not None and period_ms % 1_000 == 0 else ""
        policies.append(f'"{name}";q={_whole(status.limit, burst)}{window}')
        wanted = Decimal((consume or {}).get(status.limit, 0)) if status.violated else burst
        reset_s = retry_after_s if status.violated else None
        if period_ms is not None and wanted <= burst:
            missing = max(wanted - status.available, Decimal(0))
            reset_s = min(math.ceil(math.ceil(missing * period_ms / amount) / 1_000), INTEGER_MAX)
            if retry_after_s is not None:
                # Retry-After must not be earlier than any `t` (section 6 of the draft).
                reset_s = min(reset_s, retry_after_s)
        left.append(
            f'"{name}";r={_whole(status.limit, status.available)}'
            + (f";t={reset_s}" if reset_s is not None else "")
        )
    if not policies:
        return []
    return [(b"ratelimit-policy", ", ".join(policies).encode()), (b"ratelimit", ", ".join(left).encode())]


def _policy(status: LimitStatus, entity: str) -> str:
    return status.limit if status.entity == entity else f"parent:{status.limit}"


def _rule(rule: str) -> tuple[Decimal, Decimal, int | None]:
    """The burst, the amount of a period, and the period if the limit refills evenly, of ``rpm=100/min``."""
    spec, *options = rule.split("=", 1)[1].split(",")
    amount, period = spec.split("/", 1)
    given = dict(option.split("=", 1) for option in options if "=" in option)
    burst = given.get("burst", given.get("capacity", amount))
    even = _EVEN.fullmatch(period)
    period_ms = int(even["count"] or 1) * _UNITS_MS[even["unit"]] if even else None
    return Decimal(burst), Decimal(amount), period_ms


def _whole(limit: str, amount: Decimal) -> int:
    """Whole tokens, rounded down; of money, whole millionths."""
    return max(0, min(int(amount * 1_000_000 if is_money(limit) else amount), INTEGER_MAX))


@lru_cache(1_024)
def is_money(limit: str) -> bool:
    """Only money is counted to the billionth."""
    try:
        Limit(f"{limit}=0.000000001/never")
        return True
    except sluicegate.InvalidRequestError:
        return False
