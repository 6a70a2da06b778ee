"""A callback of the LiteLLM proxy: limits and budgets of its keys, users and teams.

A call reserves tokens and money by an estimate before it goes to the model. The reported usage corrects
the reservation, also after a stream; a failed call gives it back. A refusal is 429 with ``Retry-After``.

In the proxy's configuration, with settings from the environment (see ``from_environment``)::

    litellm_settings:
      callbacks: sluicegate.litellm.handler
"""

import asyncio
import atexit
import hashlib
import json
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import litellm
from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger

import sluicegate
from sluicegate import Limit, Limiter, Permit, PriceBook, Usage
from sluicegate._llm_usage import output_tokens, prompt_tokens, reported, text_bytes, tokens_of_bytes
from sluicegate._refusal import refusal
from sluicegate.asgi import is_money

log = logging.getLogger(__name__)

Amounts = dict[str, Decimal]
Choice = str | Callable[[Any, Mapping[str, Any]], str | None]

# A correction is repeated for this long while the store is unavailable.
CORRECTION_S = 600
# The outstanding corrections have this time at exit.
CLOSE_S = 5
# LiteLLM reports the usage of a stream that its client left within this time, if it does.
REPORT_S = 5
# The smallest amount of money. A call of unknown cost takes it, so that a used-up budget refuses the call.
LEAST = Decimal("0.000000001")
# LiteLLM's prices are read again after this time, if a model is missing.
PRICES_S = 5
# The longest id of an entity, in bytes.
ENTITY_BYTES = 256

_FIELDS = {
    "key": ("api_key",),
    "user": ("user_id", "api_key"),
    "team": ("team_id", "api_key"),
    "end_user": ("end_user_id", "api_key"),
}
_WITHOUT_TOKENS = ("image", "audio", "transcription", "speech", "rerank", "moderation", "video", "ocr")
_FALLBACKS = ("fallbacks", "context_window_fallbacks", "content_policy_fallbacks")
_TOKENS = frozenset({"rpm", "tpm", "input", "output"})
# A correction is repeated after these. Credentials may expire, and be renewed.
_PASSING = (sluicegate.UnavailableError, sluicegate.ContendedError, sluicegate.SetupError)


@dataclass
class _Reservation:
    """The tokens of one call, from its start to the correction."""

    call_id: str
    permit: Permit
    models: list[str]
    prompt: int
    has_tokens: bool
    # What the client sent, without the model. ``None``: a call of the proxy's own.
    sent: Mapping[str, Any] | None
    streamed_bytes: int = 0
    # The usage of an answer that is no stream.
    usage: Usage | None = None
    # The model has begun to answer.
    begun: bool = False
    settled: bool = False


class SluicegateLogger(CustomLogger):  # type: ignore[misc]  # LiteLLM is not followed by mypy
    """Limits the calls of a proxy. Several instances may be registered: for example limits per model, and
    a budget for all models (``resource=lambda auth, data: "llm"``). It has no subclasses: LiteLLM would not
    call what they inherit.

    ``make_limiter`` is called at the first request, in the process that serves it.
    ``counts`` names the limits that a call consumes: ``rpm`` (1), ``tpm`` (all tokens), ``input``,
    ``output`` (tokens), and currencies like ``usd``; a suffix is allowed, like ``usd.team``.
    ``entity`` and ``parent`` are ``key``, ``user``, ``team``, ``end_user``, or a function of LiteLLM's
    ``UserAPIKeyAuth`` and the request. A call without a user, team or end user belongs to its key.
    ``resource`` is ``model``, the name that the client asks for, or a function.
    ``prices`` are LiteLLM's own, unless given.
    ``output_estimate`` is the output of a call that sets no ``max_tokens``. If it answers with more, the
    balance becomes negative.
    """

    def __init__(
        self,
        make_limiter: Callable[[], Limiter],
        *,
        counts: Iterable[str],
        entity: Choice = "key",
        resource: Choice = "model",
        parent: Choice | None = None,
        parent_limits: Iterable[Limit | str] = (),
        prices: PriceBook | None = None,
        output_estimate: int = 1_024,
    ) -> None:
        super().__init__()
        for choice in (entity, parent):
            if isinstance(choice, str) and choice not in _FIELDS:
                raise ValueError(f"{choice!r} is none of {', '.join(_FIELDS)}")
        if isinstance(resource, str) and resource != "model":
            raise ValueError(f"the resource {resource!r} is not 'model': for one of your own, give a function")
        self._make_limiter = make_limiter
        self._made: Limiter | None = None
        self._counts = list(counts)
        for name in self._counts:
            if _base(name) not in _TOKENS and not is_money(name):
                raise ValueError(
                    f"a call cannot count {name!r}: it is none of {', '.join(_TOKENS)}, and no currency"
                )
        self._entity, self._resource, self._parent = entity, resource, parent
        self._parent_limits = list(parent_limits)
        self._prices = prices
        self._output_estimate = output_estimate
        # The contexts of a request, of its stream and of its log events share the objects that are set here.
        self._current: ContextVar[tuple[_Reservation, ...]] = ContextVar("sluicegate", default=())
        self._repeating: dict[asyncio.Task[None], Callable[[], sluicegate.Call[None]]] = {}
        atexit.register(self.close)

    def __init_subclass__(cls) -> None:
        raise TypeError("LiteLLM does not call the hooks that a class inherits: make an instance instead")

    def close(self) -> None:
        """Makes the corrections that are outstanding, and gives leased tokens back. At exit it is called."""
        repeating, self._repeating = self._repeating, {}
        end = time.monotonic() + CLOSE_S
        for correction in repeating.values():
            if time.monotonic() > end:
                log.error("corrections were not made in %d s: their estimates stay taken", CLOSE_S)
                break
            try:
                correction().sync()
            except Exception as error:
                log.error("a correction was not made: %s", error)
        if self._made is not None:
            self._made.close().sync()

    # Before the call.

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: object, data: dict[str, Any], call_type: str
    ) -> None:
        if not isinstance(data.get("model"), str) or "mcp" in call_type:
            return
        earlier, sent = self._of_client(), _sent(data)
        if earlier is not None and sent is not None and earlier.sent == sent:
            # A limit of LiteLLM's own refused the model after this hook, and another model is tried.
            await self._correct(earlier, earlier.permit.release)
        models = _deployments(data["model"])
        # LiteLLM asks each model of a list, also where a wildcard matches the whole list.
        if "," in data["model"] and (len(models) == 1 or call_type in ("completion", "acompletion")):
            raise HTTPException(400, {"error": "name one model: each has limits of its own"})
        # What the client sent: LiteLLM adds the settings of its key or team to the request.
        override = (sent or {}).get("router_settings_override")
        places = (data, override) if isinstance(override, Mapping) else (data,)
        if any(place.get(name) for place in places for name in _FALLBACKS):
            raise HTTPException(400, {"error": "name no fallbacks: each model has limits of its own"})
        prompt = prompt_tokens(data)
        has_tokens = not any(kind in call_type for kind in _WITHOUT_TOKENS)
        if not has_tokens and (other := self._other_money()):
            # Only LiteLLM knows what such a call costs, and it counts in dollars.
            raise HTTPException(400, {"error": f"the model {data['model']} has no price in {other}"})
        consume = self._estimate(data, call_type, models, prompt) if has_tokens else self._least()
        if not consume:
            return
        entity = _name(self._entity, user_api_key_dict, data)
        resource = data["model"] if self._resource == "model" else _name(self._resource, user_api_key_dict, data)
        options: sluicegate.Options = {}
        if self._parent is not None:
            parent = _name(self._parent, user_api_key_dict, data)
            if parent != entity:
                options = {"parent": parent, "parent_limits": self._parent_limits}
        try:
            permit = await self._limiter().acquire(entity, resource, consume, **options)
        except (sluicegate.SluicegateError, ValueError) as error:
            raise _response(error) from error
        reservation = _Reservation(_call_id(data), permit, models, prompt, has_tokens, sent)
        self._current.set((*(one for one in self._current.get() if not one.settled), reservation))

    def _limiter(self) -> Limiter:
        if self._made is None:
            self._made = self._make_limiter()
        return self._made

    def _estimate(self, data: Mapping[str, Any], call_type: str, models: list[str], prompt: int) -> Amounts:
        output = 0 if "embedding" in call_type else output_tokens(data, self._output_estimate)
        try:
            amounts = self._amounts(models, Usage(input=prompt, output=output))
        except sluicegate.UnknownPriceError as error:
            raise HTTPException(400, {"error": f"the model {data['model']} has no price"}) from error
        return {name: amount for name, amount in amounts.items() if amount > 0}

    def _other_money(self) -> str:
        """The counted currencies but dollars."""
        return ", ".join(name for name in self._counts if _base(name) not in (*_TOKENS, "usd"))

    def _least(self) -> Amounts:
        """The amounts of a call without tokens, whose cost is known afterwards."""
        money = {name: LEAST for name in self._counts if _base(name) not in _TOKENS}
        return money | {name: Decimal(1) for name in self._counts if _base(name) == "rpm"}

    def _amounts(self, models: list[str], usage: Usage) -> Amounts:
        """The amounts of a call by limit. Raises ``UnknownPriceError`` if they need a price that is not known."""
        money = [name for name in self._counts if _base(name) not in _TOKENS]
        cost = self._cost(models, usage) if money else {}
        missing = [name for name in money if _base(name) not in cost]
        if missing:
            raise sluicegate.UnknownPriceError(f"no price of {', '.join(models)} in {', '.join(missing)}")
        return self._token_amounts(usage) | {name: cost[_base(name)] for name in money}

    def _token_amounts(self, usage: Usage) -> Amounts:
        input = usage.input + usage.cached_input + usage.cache_write
        known = {"rpm": 1, "tpm": input + usage.output, "input": input, "output": usage.output}
        return {name: Decimal(known[_base(name)]) for name in self._counts if _base(name) in _TOKENS}

    def _cost(self, models: list[str], usage: Usage) -> Amounts:
        """The highest cost of the deployments. The last name is the proxy's own, for those without a price."""
        books: Iterable[PriceBook] = [self._prices] if self._prices is not None else _litellm_books(models)
        for book in books:
            costs = [cost for model in models[:-1] if (cost := _price(book, model, usage)) is not None]
            if not costs and (cost := _price(book, models[-1], usage)) is not None:
                costs = [cost]
            if costs:
                return max(costs, key=lambda cost: max(cost.values(), default=Decimal(0)))
        raise sluicegate.UnknownPriceError(f"no price of {', '.join(models)}")

    # After the call.

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: object, end_time: object
    ) -> None:
        reservation = self._of_call(kwargs.get("litellm_call_id"))
        if reservation is None:
            return
        usage = reported(kwargs, response_obj)
        charged: Any = kwargs.get("response_cost")
        names = [name for name in (kwargs.get("model"), getattr(response_obj, "model", None)) if name]
        provider = kwargs.get("custom_llm_provider")
        named = [f"{provider}/{name}" for name in names if provider] + names
        # A deployment that has prices of its own comes first: they may be zero.
        deployment = (kwargs.get("standard_logging_object") or {}).get("model_id")
        if deployment in reservation.models[:-1]:
            named.insert(0, deployment)
        amounts: Amounts = {}
        # LiteLLM knows what its price list does not say: audio, long contexts, a deployment's own prices.
        is_charged = (
            (self._prices is None or not reservation.has_tokens)
            and isinstance(charged, int | float)
            and charged > 0
        )
        if kwargs.get("cache_hit") is True:
            # The proxy answered from its cache: no model was asked.
            amounts = {name: Decimal(0) for name in self._counts if _base(name) != "rpm"}
        elif is_charged:
            cost = Decimal(str(round(charged, 9)))
            amounts = {name: cost for name in self._counts if _base(name) == "usd"}
            if usage is not None and reservation.has_tokens:
                amounts |= self._token_amounts(usage)
        elif usage is not None and reservation.has_tokens:
            amounts = self._token_amounts(usage)
            for model in [*named, *reservation.models]:
                try:
                    amounts |= self._amounts([model], usage)
                    break
                except sluicegate.UnknownPriceError:
                    continue
            else:
                log.error("the model %s has no price: its estimate stays taken", names)
        if amounts:
            permit = reservation.permit
            await self._correct(reservation, lambda: permit.correct_to(**amounts))

    async def async_post_call_failure_hook(
        self,
        request_data: dict[str, Any],
        original_exception: Exception,
        user_api_key_dict: Any,
        traceback_str: str | None = None,
    ) -> None:
        # A retry or another model may follow a failed attempt; only this event is the end of the request.
        # LiteLLM may have given the request another id meanwhile.
        reservation = self._of_client()
        if reservation is not None and (reservation.begun or reservation.usage is not None):
            await self._count_streamed(reservation)
        elif reservation is not None:
            await self._correct(reservation, reservation.permit.release)

    async def async_post_call_success_deployment_hook(
        self, request_data: dict[str, Any], response: Any, call_type: object
    ) -> None:
        # A guardrail may refuse the answer afterwards. It was made, and LiteLLM reports a failure only.
        reservation = self._of_call(_call_id(request_data))
        if reservation is not None:
            # The answer of a message of Anthropic is its JSON.
            if isinstance(response, Mapping):
                reservation.usage = Usage.of_response({"usage": response.get("usage")})
            else:
                reservation.usage = reported({}, response)

    async def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: Any, response: Any, request_data: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        reservation = self._of_call(_call_id(request_data))
        try:
            async for chunk in response:
                if reservation is not None:
                    reservation.begun = True
                    reservation.streamed_bytes += text_bytes(chunk)
                yield chunk
        except (asyncio.CancelledError, GeneratorExit):
            # The client went away. LiteLLM reports the usage of most streams that had begun, and of no other.
            if reservation is not None:
                self._background(self._count_streamed(reservation, REPORT_S if reservation.begun else 0))
            raise

    async def _count_streamed(self, reservation: _Reservation, after_s: float = 0) -> None:
        def correction() -> sluicegate.Call[None]:
            streamed = Usage(input=reservation.prompt, output=tokens_of_bytes(reservation.streamed_bytes))
            amounts = self._amounts(reservation.models, reservation.usage or streamed)
            return reservation.permit.correct_to(**amounts)

        try:
            await asyncio.sleep(after_s)
        except asyncio.CancelledError:
            # The event loop ends: `close` makes the correction.
            if not reservation.settled:
                reservation.settled = True
                self._repeat_soon(correction)
            raise
        await self._correct(reservation, correction)

    def _of_call(self, call_id: object) -> _Reservation | None:
        """The reservation of the call that an event is of. Within a request the proxy may make others."""
        return next((one for one in reversed(self._current.get()) if one.call_id == call_id), None)

    def _of_client(self) -> _Reservation | None:
        """The reservation of the client's own call, under whatever id."""
        reservations = self._current.get()
        own = (one for one in reversed(reservations) if one.sent is not None)
        return next(own, reservations[0] if reservations else None)

    async def _correct(self, reservation: _Reservation, correction: Callable[[], sluicegate.Call[None]]) -> None:
        """Makes the correction, once for a reservation; repeats it in the background if the store is
        unavailable. Totals and ``release`` do nothing twice, however often they are repeated; ``adjust``
        might, after a lost answer."""
        if reservation.settled:
            return
        reservation.settled = True
        try:
            await correction()
        except sluicegate.AmbiguousError as error:
            log.warning("a correction counts as made: %s", error)
        except asyncio.CancelledError:
            # LiteLLM gives an event 20 seconds.
            self._repeat_soon(correction)
            raise
        except _PASSING:
            self._repeat_soon(correction)

    def _repeat_soon(self, correction: Callable[[], sluicegate.Call[None]]) -> None:
        task = self._background(self._repeat(correction))
        self._repeating[task] = correction
        # A task that is cancelled at the end of the process leaves its correction to `close`.
        task.add_done_callback(lambda task: task.cancelled() or self._repeating.pop(task, None))

    async def _repeat(self, correction: Callable[[], sluicegate.Call[None]]) -> None:
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + CORRECTION_S, 0.1
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5)
            try:
                await correction()
                return
            except sluicegate.AmbiguousError as error:
                log.warning("a correction counts as made: %s", error)
                return
            except _PASSING as error:
                if loop.time() > end:
                    log.error("a correction was not made in %d s: %s", CORRECTION_S, error)
                    return

    def _background(self, work: Any) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)
        return task


# A client may ask for no log (``no-log``). LiteLLM reports such a call to classes of this name only.
SluicegateLogger.__name__ = "_PROXY_SluicegateLogger"

# The event loop keeps only weak references to its tasks.
_tasks: set["asyncio.Task[None]"] = set()


def from_environment(environ: Mapping[str, str] = os.environ) -> SluicegateLogger:
    """The callback that the environment describes:

    * ``SLUICEGATE_REDIS_URL``, or ``SLUICEGATE_TABLE`` with the AWS environment and, if it is not AWS's
      own, ``SLUICEGATE_ENDPOINT_URL``
    * ``SLUICEGATE_LIMITS``: limits with spaces between them, like ``rpm=100/min usd=200/month``. Without
      them the stored ones apply, and ``SLUICEGATE_COUNTS`` names those that calls consume: ``rpm usd``
    * ``SLUICEGATE_ENTITY``: ``key`` (unless set), ``user``, ``team`` or ``end_user``; ``SLUICEGATE_PARENT``
      likewise, with ``SLUICEGATE_PARENT_LIMITS``
    * ``SLUICEGATE_RESOURCE``: ``model`` (unless set), or a name for all models together
    * ``SLUICEGATE_ON_UNAVAILABLE``: ``allow`` (unless set), ``deny`` or ``local``
    * ``SLUICEGATE_LEASING``: ``strict`` or ``write_behind``; ``SLUICEGATE_DEADLINE_MS``; ``SLUICEGATE_SHADOW=1``
    * ``SLUICEGATE_PRICES``: a file in the format of ``sluicegate-prices``; ``SLUICEGATE_OUTPUT_ESTIMATE``: tokens
    """
    settings: dict[str, Any] = {}
    limits = [Limit(text) for text in environ.get("SLUICEGATE_LIMITS", "").split()]
    if limits:
        settings["limits"] = limits
    for name in ("leasing", "on_unavailable"):
        if value := environ.get(f"SLUICEGATE_{name.upper()}"):
            settings[name] = value
    if deadline_ms := environ.get("SLUICEGATE_DEADLINE_MS"):
        settings["deadline"] = timedelta(milliseconds=int(deadline_ms))
    if environ.get("SLUICEGATE_SHADOW") == "1":
        settings["shadow"] = True
    counts = environ.get("SLUICEGATE_COUNTS", "").split() or [limit.name for limit in limits]
    url, table = environ.get("SLUICEGATE_REDIS_URL"), environ.get("SLUICEGATE_TABLE")
    if not counts or (url is None) == (table is None):
        raise ValueError(
            "set SLUICEGATE_REDIS_URL or SLUICEGATE_TABLE, and SLUICEGATE_LIMITS or SLUICEGATE_COUNTS"
        )
    if url is not None and not limits:
        raise ValueError("set SLUICEGATE_LIMITS: Redis stores no limits")

    def make() -> Limiter:
        if url is not None:
            return sluicegate.redis(url, **settings)
        endpoint_url = environ.get("SLUICEGATE_ENDPOINT_URL")
        return sluicegate.dynamodb(str(table), endpoint_url=endpoint_url, **settings)

    resource, prices = environ.get("SLUICEGATE_RESOURCE", "model"), environ.get("SLUICEGATE_PRICES")
    book = None
    if prices is not None:
        with open(prices, encoding="utf-8") as file:
            book = PriceBook.from_json(file.read())
    return SluicegateLogger(
        make,
        counts=counts,
        entity=environ.get("SLUICEGATE_ENTITY", "key"),
        resource=resource if resource == "model" else lambda auth, data: resource,
        parent=environ.get("SLUICEGATE_PARENT"),
        parent_limits=environ.get("SLUICEGATE_PARENT_LIMITS", "").split(),
        prices=book,
        output_estimate=int(environ.get("SLUICEGATE_OUTPUT_ESTIMATE", "1024")),
    )


def __getattr__(name: str) -> SluicegateLogger:
    """``handler``: made when the proxy asks for it."""
    if name != "handler":
        raise AttributeError(name)
    globals()[name] = handler = from_environment()
    return handler


def _response(error: Exception) -> HTTPException:
    refused = refusal(error)
    limits = [status.rule for status in refused.violated]
    text = f"limit exceeded: {', '.join(limits)}: {refused.detail}" if limits else refused.detail
    return HTTPException(refused.status, {"error": text}, refused.headers)


def _call_id(data: Mapping[str, Any]) -> str:
    """LiteLLM's id of a call; a request that it passes through has it in its logger only."""
    logger = data.get("litellm_logging_obj")
    return str(data.get("litellm_call_id") or getattr(logger, "litellm_call_id", ""))


def _sent(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the client sent, without the model: LiteLLM replaces that, to try another one."""
    request = data.get("proxy_server_request") or {}
    body = request.get("body")
    if not isinstance(body, Mapping):
        return None
    return {"url": request.get("url")} | {name: value for name, value in body.items() if name != "model"}


def _price(book: PriceBook, model: str, usage: Usage) -> Amounts | None:
    for name in _price_names(model):
        try:
            amounts = book.amounts(name, usage)
        except sluicegate.UnknownPriceError:
            continue
        return {name: amount for name, amount in amounts.items() if name not in _TOKENS}
    return None


def _price_names(model: str) -> Iterable[str]:
    return dict.fromkeys((model, model.split("/", 1)[-1]))


# LiteLLM's prices, and the time at which they were read.
_litellm_prices: tuple[PriceBook, float] | None = None


def _litellm_books(models: list[str]) -> Iterator[PriceBook]:
    """LiteLLM's prices; then its newest ones, if it may have got one of these models since."""
    global _litellm_prices
    if _litellm_prices is not None:
        book, read_at = _litellm_prices
        yield book
        is_known = any(name in litellm.model_cost for model in models for name in _price_names(model))
        if not is_known or time.monotonic() < read_at + PRICES_S:
            return
    _litellm_prices = _read_prices(litellm.model_cost), time.monotonic()
    yield _litellm_prices[0]


def _read_prices(costs: Mapping[str, Any]) -> PriceBook:
    try:
        return PriceBook.from_litellm(json.dumps(costs, default=str))
    except sluicegate.InvalidRequestError:
        pass
    readable = {}
    for name, cost in costs.items():
        try:
            PriceBook.from_litellm(json.dumps({name: cost}, default=str))
            readable[name] = cost
        except sluicegate.InvalidRequestError as error:
            log.warning("the price of %s is not read: %s", name, error)
    return PriceBook.from_litellm(json.dumps(readable, default=str))


def _base(limit: str) -> str:
    return limit.split(".", 1)[0]


def _name(choice: Choice, auth: Any, data: Mapping[str, Any]) -> str:
    if not isinstance(choice, str):
        return choice(auth, data) or "anonymous"
    for name in _FIELDS[choice]:
        if value := str(getattr(auth, name, None) or ""):
            encoded = value.encode(errors="replace")
            # An entity's id is no secret: the store shows it. It has no `#` and no control characters.
            is_id = "#" not in value and value.isprintable() and len(encoded) <= ENTITY_BYTES
            return value if is_id and not value.startswith("sk-") else hashlib.sha256(encoded).hexdigest()
    return "anonymous"


def _deployments(model: str) -> list[str]:
    """The models behind a name of the proxy, and the name itself."""
    from litellm.proxy.proxy_server import llm_router

    listed = llm_router.registry().deployments(model) if llm_router is not None else None
    names = []
    for deployment in listed or []:
        info, params = deployment.get("model_info") or {}, deployment.get("litellm_params") or {}
        # LiteLLM keeps the prices that its configuration sets under the deployment's id.
        priced = params.get("input_cost_per_token") is not None or info.get("input_cost_per_token") is not None
        own = info.get("id") if priced else None
        names.append(own or info.get("base_model") or params.get("base_model") or params.get("model"))
    return [*(name for name in dict.fromkeys(names) if name), model]
