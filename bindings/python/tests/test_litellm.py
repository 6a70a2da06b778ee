"""The LiteLLM proxy with the callback, in this process; its models are a small server of the OpenAI API."""

import asyncio
import calendar
import hashlib
import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, Literal

import httpx
import pytest
import sluicegate
from starlette.applications import Starlette
from starlette.routing import Route

# LiteLLM reads it when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from servers import INPUT_USD, OUTPUT_USD, Cable, Models, Served  # noqa: E402
from fastapi import HTTPException  # noqa: E402
from sluicegate._llm_usage import output_tokens, prompt_tokens, text_bytes  # noqa: E402
from sluicegate.litellm import SluicegateLogger, from_environment  # noqa: E402

# A call with 5 output tokens, and at most 40 in its prompt.
ESTIMATE_USD = 40 * INPUT_USD + 5 * OUTPUT_USD
CALLS = int(os.environ.get("SLUICEGATE_TEST_CALLS", "60"))
OUTAGE_S = float(os.environ.get("SLUICEGATE_TEST_OUTAGE_SECONDS", "0.5"))


class Proxy:
    def __init__(self, url: str, models: Models, engine: sluicegate.Local) -> None:
        self.url, self.models, self.engine = url, models, engine

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.url,
            headers={"authorization": "Bearer sk-of-the-test"},
            timeout=60,
            limits=httpx.Limits(max_connections=200),
        )

    def left(self, user: str, resource: str = "cheap") -> dict[str, Decimal]:
        peeked = self.engine.limiter().peek(user, resource).sync()
        return {status.limit: status.available for status in peeked}

    def settles(self, user: str, expected: dict[str, Decimal], resource: str = "cheap") -> None:
        """Corrections come a moment after the response."""
        end = time.monotonic() + 20
        while self.left(user, resource) != expected and time.monotonic() < end:
            time.sleep(0.05)
        assert self.left(user, resource) == expected


@pytest.fixture(scope="module")
def proxy(sluicegate_local: sluicegate.Local, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    models = Models()
    upstream = Served(Starlette(routes=[Route("/v1/chat/completions", models.answer, methods=["POST"])]))
    config = tmp_path_factory.mktemp("litellm") / "config.yaml"
    cheap = {"model": "openai/gpt-4o-mini", "api_base": f"{upstream.url}/v1", "api_key": "none"}
    mocked = {"model": "openai/gpt-4o-mini", "api_key": "none", "mock_response": "hello from the mock"}
    config.write_text(
        json.dumps(
            {
                "model_list": [
                    {"model_name": "cheap", "litellm_params": cheap},
                    {"model_name": "mocked", "litellm_params": mocked},
                    {"model_name": "unpriced", "litellm_params": cheap | {"model": "openai/no-such-model"}},
                ],
                "litellm_settings": {
                    "callbacks": "sluicegate.litellm.handler",
                    "num_retries": 0,
                    "cache": True,
                    "cache_params": {"type": "local", "mode": "default_off"},
                },
                "general_settings": {"master_key": "sk-of-the-test", "always_include_stream_usage": True},
            }
        )
    )
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {
            "CONFIG_FILE_PATH": str(config),
            "SLUICEGATE_TABLE": sluicegate_local.table,
            "SLUICEGATE_ENDPOINT_URL": sluicegate_local.endpoint_url,
            "SLUICEGATE_LIMITS": "rpm=1000000/never tpm=3000000/never usd=0.02/month",
            "SLUICEGATE_ENTITY": "end_user",
        }.items():
            environment.setenv(name, value)
        from litellm.proxy.proxy_server import app

        served = Served(app)
        yield Proxy(served.url, models, sluicegate_local)
        served.stop()
        upstream.stop()


def call(user: str, *, model: str = "cheap", stream: bool = False, **wish: Any) -> dict[str, Any]:
    wish = {"user": user, "input": 10, "output": 20} | wish
    return {
        "model": model,
        "user": user,
        "stream": stream,
        "max_tokens": wish["output"],
        "messages": [{"role": "user", "content": json.dumps(wish)}],
    }


async def send(client: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
    response = await client.post("/v1/chat/completions", json=body)
    if body["stream"] and response.status_code == 200:
        assert response.text.rstrip().endswith("data: [DONE]"), response.text
    return response


def test_calls_at_once_with_streams_stay_within_the_budget(proxy: Proxy) -> None:
    # A fifth of the calls does not fit.
    dice = random.Random(7)
    outputs = [dice.randint(200, 2_000) for _ in range(CALLS)]
    user = f"many-{CALLS}"

    async def main() -> list[httpx.Response]:
        async with proxy.client() as client:
            bodies = [
                call(user, stream=n % 2 == 0, input=20, output=output * 60 // CALLS)
                for n, output in enumerate(outputs)
            ]
            return list(await asyncio.gather(*(send(client, body) for body in bodies)))

    responses = asyncio.run(main())
    granted = [response for response in responses if response.status_code == 200]
    refused = [response for response in responses if response.status_code != 200]
    assert len(granted) > CALLS // 3 and len(refused) > CALLS // 20
    for response in refused:
        assert response.status_code == 429, response.text
        assert "usd=0.02/month" in response.json()["error"]["message"]
        assert 0 < int(response.headers["retry-after"]) <= 31 * 86_400
    billed, tokens = proxy.models.billed[user], proxy.models.tokens[user]
    assert Decimal("0.01") < billed <= Decimal("0.02")
    left = {"rpm": 1_000_000 - Decimal(len(granted)), "tpm": 3_000_000 - Decimal(tokens)}
    proxy.settles(user, left | {"usd": Decimal("0.02") - billed})


FULL = {"rpm": Decimal(1_000_000), "tpm": Decimal(3_000_000), "usd": Decimal("0.02")}


def spends(proxy: Proxy, user: str, least: str, most: str, resource: str = "cheap") -> None:
    """The correction comes a moment after the response: at the end, this much is spent."""
    end = time.monotonic() + 10
    while not Decimal(least) <= (spent := FULL["usd"] - proxy.left(user, resource)["usd"]) <= Decimal(most):
        assert time.monotonic() < end, spent
        time.sleep(0.05)


@pytest.mark.parametrize("stream", [False, True])
def test_a_mocked_answer_is_counted(proxy: Proxy, stream: bool) -> None:
    async def main() -> httpx.Response:
        async with proxy.client() as client:
            return await send(client, call(f"mocked-{stream}", model="mocked", stream=stream, output=9_000))

    assert asyncio.run(main()).status_code == 200
    # Of 9,000 tokens at 0.0054 dollars, it answers with a few.
    spends(proxy, f"mocked-{stream}", "0.000003", "0.0001", "mocked")


def test_a_call_that_asks_for_no_log_is_corrected_too(proxy: Proxy) -> None:
    async def main() -> httpx.Response:
        async with proxy.client() as client:
            return await send(client, call("unlogged", model="mocked", output=9_000) | {"no-log": True})

    assert asyncio.run(main()).status_code == 200
    spends(proxy, "unlogged", "0.000003", "0.0001", "mocked")


def test_a_failed_call_gives_everything_back(proxy: Proxy) -> None:
    async def main() -> None:
        async with proxy.client() as client:
            for stream in (False, True):
                response = await send(client, call("failed", stream=stream, status=500))
                assert response.status_code == 500, response.text

    asyncio.run(main())
    proxy.settles("failed", FULL)


@pytest.mark.parametrize(
    ("broken", "api"),
    [("by the model", "chat/completions"), ("by the client", "chat/completions"), ("by the client", "completions")],
)
def test_a_stream_that_ends_early_is_counted_as_far_as_it_came(proxy: Proxy, broken: str, api: str) -> None:
    user = f"{broken} of {api}".replace(" ", "-")

    async def main() -> None:
        async with proxy.client() as client:
            body = call(user, stream=True, output=9_000, broken=broken)
            if api == "completions":
                body["prompt"] = body.pop("messages")[0]["content"]
            async with client.stream("POST", f"/v1/{api}", json=body) as response:
                async for line in response.aiter_lines():
                    if broken == "by the client" and "hello" in line:
                        break

    asyncio.run(main())
    spends(proxy, user, "0.000001", "0.0001")


def test_a_stream_that_is_cancelled_before_its_first_word_costs_the_prompt() -> None:
    limiter = sluicegate.memory(limits=["tpm=1000/never"])
    callback = SluicegateLogger(lambda: limiter, counts=["tpm"], resource=lambda auth, data: "llm")

    async def silence() -> AsyncIterator[None]:
        await asyncio.sleep(60)
        yield None

    async def main() -> Decimal:
        data = {"model": "cheap", "litellm_call_id": "1", "messages": [{"content": "x" * 60}], "max_tokens": 500}
        await callback.async_pre_call_hook(None, None, data, "acompletion")
        stream = callback.async_post_call_streaming_iterator_hook(None, silence(), data)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(stream), 0.05)
        await asyncio.sleep(0.05)
        return (await limiter.peek("anonymous", "llm"))[0].available

    assert asyncio.run(main()) == 1_000 - 24


def test_a_stream_that_is_left_as_the_loop_ends_costs_what_was_sent() -> None:
    callback, left = budget(["tpm=10000/never"])

    async def words() -> AsyncIterator[str]:
        yield "hello"
        await asyncio.sleep(60)

    async def main() -> None:
        data = {"model": "m", "litellm_call_id": "1", "messages": [{"content": "x" * 60}], "max_tokens": 5_000}
        await callback.async_pre_call_hook(None, None, data, "acompletion")
        stream = callback.async_post_call_streaming_iterator_hook(None, words(), data)
        assert await anext(stream) == "hello"
        await stream.aclose()

    asyncio.run(main())
    callback.close()
    # The prompt costs 24, and the word that was sent comes on top.
    assert 9_900 < left()[0] < 10_000 - 24


def answered(
    callback: SluicegateLogger, data: dict[str, Any], call_type: str = "acompletion", **event: Any
) -> None:
    """A call from its start to its success, as LiteLLM tells the callback of them."""

    async def main() -> None:
        await callback.async_pre_call_hook(None, None, data, call_type)
        await callback.async_log_success_event({"litellm_call_id": "1"} | event, None, None, None)

    asyncio.run(main())


def budget(limits: list[str], **settings: Any) -> tuple[SluicegateLogger, Callable[[], list[Decimal]]]:
    limiter = sluicegate.memory(limits=limits)
    counts = [limit.split("=")[0] for limit in limits]
    callback = SluicegateLogger(lambda: limiter, counts=counts, resource=lambda auth, data: "llm", **settings)
    return callback, lambda: [status.available for status in limiter.peek("anonymous", "llm").sync()]


def usage(prompt: int, completion: int) -> dict[str, Any]:
    tokens = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"standard_logging_object": {"metadata": {"usage_object": tokens}}}


def test_an_image_is_refused_if_a_budget_is_not_in_dollars() -> None:
    callback, left = budget(["eur=1/never"])
    with pytest.raises(HTTPException, match="no price in eur"):
        answered(callback, {"model": "m", "litellm_call_id": "1", "prompt": "x"}, "aimage_generation")
    assert left() == [Decimal(1)]


def test_an_image_costs_what_litellm_says() -> None:
    callback, left = budget(["rpm=10/never", "usd=1/never"])
    data = {"model": "openai/dall-e-3", "litellm_call_id": "1", "prompt": "a sluice gate"}
    answered(callback, data, "aimage_generation", response_cost=0.04, **usage(0, 0))
    assert left() == [Decimal(9), Decimal("0.96")]


def test_an_answer_without_usage_stays_at_its_estimate() -> None:
    callback, left = budget(["tpm=1000/never"])
    data = {"model": "m", "litellm_call_id": "1", "messages": [{"content": "x" * 60}], "max_tokens": 100}
    answered(callback, data, response_cost=0.0, **usage(0, 0))
    assert left() == [Decimal(1_000 - 124)]


def test_a_call_that_is_passed_through_is_corrected() -> None:
    callback, left = budget(["tpm=1000/never"])
    data = {"model": "m", "max_tokens": 500, "litellm_logging_obj": SimpleNamespace(litellm_call_id="1")}
    answered(callback, data, "pass_through_endpoint", **usage(10, 20))
    assert left() == [Decimal(970)]


def test_a_failure_under_another_id_gives_everything_back() -> None:
    callback, left = budget(["tpm=1000/never"])

    async def main() -> None:
        data = {"model": "m", "litellm_call_id": "1", "max_tokens": 500}
        await callback.async_pre_call_hook(None, None, data, "acompletion")
        await callback.async_post_call_failure_hook({"litellm_call_id": "2"}, ValueError(), None)

    asyncio.run(main())
    assert left() == [Decimal(1_000)]


def test_a_broken_stream_of_tool_calls_is_counted() -> None:
    callback, left = budget(["tpm=1000/never"])
    tool_call = SimpleNamespace(function=SimpleNamespace(arguments="x" * 90))
    delta = SimpleNamespace(tool_calls=[tool_call])
    chunk = SimpleNamespace(choices=[SimpleNamespace(delta=delta)])

    async def broken() -> AsyncIterator[Any]:
        yield chunk
        raise ValueError

    async def main() -> None:
        data = {"model": "m", "litellm_call_id": "1", "messages": [{"content": "x" * 60}], "max_tokens": 500}
        await callback.async_pre_call_hook(None, None, data, "acompletion")
        with pytest.raises(ValueError):
            async for _ in callback.async_post_call_streaming_iterator_hook(None, broken(), data):
                pass
        await callback.async_post_call_failure_hook(data, ValueError(), None)

    asyncio.run(main())
    assert left() == [Decimal(1_000 - 24 - 30)]


def test_calls_that_have_nothing_to_count_pass() -> None:
    callback, left = budget(["tpm=1000/never"])
    answered(callback, {"model": "dall-e-3"}, "aimage_generation")
    answered(callback, {"model": "mcp-tool-call", "max_tokens": 500}, "call_mcp_tool")
    assert left() == [Decimal(1_000)]


def test_a_call_of_several_models_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from litellm.proxy import proxy_server
    from litellm.router import Router

    wildcard = {"model_name": "openai/*", "litellm_params": {"model": "openai/*", "api_key": "x"}}
    monkeypatch.setattr(proxy_server, "llm_router", Router(model_list=[wildcard]))
    callback, _ = budget(["tpm=1000/never"])
    for models in ("gpt-4,gpt-4o", "openai/gpt-4,openai/gpt-4o"):
        with pytest.raises(HTTPException, match="name one model"):
            answered(callback, {"model": models})


def test_a_call_that_is_tried_anew_with_another_model_is_counted_once() -> None:
    callback, left = budget(["rpm=10/never"])

    async def main() -> None:
        for model in ("cheap", "other"):
            request = {"url": "/v1/chat/completions", "body": {"model": model, "messages": []}}
            data = {"model": model, "litellm_call_id": model, "proxy_server_request": request}
            await callback.async_pre_call_hook(None, None, data, "acompletion")
        # A search of the proxy's own, for the same request.
        await callback.async_pre_call_hook(None, None, {"model": "search", "input": ["x"]}, "aembedding")

    asyncio.run(main())
    assert left() == [Decimal(8)]


def test_a_call_of_the_proxys_own_leaves_the_clients_as_it_is() -> None:
    callback, left = budget(["tpm=1000/never"])

    async def main(end: str) -> None:
        request = {"url": "/v1/chat/completions", "body": {"model": "m", "messages": []}}
        data = {"model": "m", "litellm_call_id": "1", "max_tokens": 500, "proxy_server_request": request}
        await callback.async_pre_call_hook(None, None, data, "acompletion")
        search = {"model": "search", "litellm_call_id": "2", "input": ["x" * 90]}
        await callback.async_pre_call_hook(None, None, search, "aembedding")
        await callback.async_log_success_event({"litellm_call_id": "2"} | usage(7, 0), None, None, None)
        if end == "failure":
            await callback.async_post_call_failure_hook({"litellm_call_id": "3"}, ValueError(), None)
        else:
            await callback.async_log_success_event({"litellm_call_id": "1"} | usage(10, 20), None, None, None)

    asyncio.run(main("success"))
    assert left() == [Decimal(1_000 - 7 - 30)]
    asyncio.run(main("failure"))
    assert left() == [Decimal(1_000 - 7 - 30 - 7)]


def test_a_class_whose_hooks_would_not_be_called_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="make an instance"):
        type("Own", (SluicegateLogger,), {})


@pytest.mark.parametrize("key", ["fallbacks", "context_window_fallbacks", "content_policy_fallbacks"])
def test_a_call_that_brings_fallbacks_is_refused(key: str) -> None:
    callback, left = budget(["tpm=1000/never"])
    body = {"router_settings_override": {key: [{"gpt-4": ["gpt-4o"]}]}}
    for fields in ({key: ["gpt-4o"]}, {"proxy_server_request": {"body": body}}):
        with pytest.raises(HTTPException, match="name no fallbacks"):
            answered(callback, {"model": "gpt-4"} | fields)
    # The settings of the key are not the client's.
    answered(callback, {"model": "gpt-4", "litellm_call_id": "1", "max_tokens": 500} | body, **usage(10, 20))
    assert left() == [Decimal(970)]


def test_a_call_costs_what_litellm_says_unless_it_has_a_price_list() -> None:
    data = {"model": "openai/gpt-4o", "litellm_call_id": "1", "max_tokens": 500}
    for prices, cost in ((None, "0.05"), (PRICES, "0.0035")):
        book = sluicegate.PriceBook.from_json(prices) if prices else None
        callback, left = budget(["usd=1/never", "tpm=1000/never"], prices=book)
        answered(callback, data, model="gpt-4o", response_cost=0.05, **usage(200, 300))
        assert left() == [Decimal(500), 1 - Decimal(cost)]


PRICES = """{"currency": "USD", "models": {"gpt-4o": [
    {"from": "2026-01-01", "input": "2.50", "output": "10.00"}]}}"""


def test_the_prices_of_a_deployment_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import sluicegate.litellm
    from litellm.router import Router
    from litellm.proxy import proxy_server

    monkeypatch.setattr(sluicegate.litellm, "PRICES_S", 0)
    price = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.002}
    deployment = {"model": "openai/my-llama", "api_key": "x", **price}
    router = Router(model_list=[{"model_name": "own", "litellm_params": deployment}])
    monkeypatch.setattr(proxy_server, "llm_router", router)
    callback, left = budget(["usd=1/never"])
    data = {"model": "own", "litellm_call_id": "1", "max_tokens": 100}
    asyncio.run(callback.async_pre_call_hook(None, None, data, "acompletion"))
    assert left() == [Decimal("0.8")]


def test_a_deployment_that_costs_nothing_is_charged_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import sluicegate.litellm
    from litellm.router import Router
    from litellm.proxy import proxy_server

    monkeypatch.setattr(sluicegate.litellm, "PRICES_S", 0)
    price = {"input_cost_per_token": 0, "output_cost_per_token": 0}
    deployment = {"model": "openai/gpt-4o", "api_key": "x", **price}
    model = {"model_name": "own", "litellm_params": deployment, "model_info": {"id": "own-1"}}
    monkeypatch.setattr(proxy_server, "llm_router", Router(model_list=[model]))
    callback, left = budget(["usd=1/never", "tpm=1000/never"])
    data = {"model": "own", "litellm_call_id": "1", "max_tokens": 100}
    event = usage(200, 300) | {"model": "gpt-4o", "custom_llm_provider": "openai", "response_cost": 0.0}
    event["standard_logging_object"]["model_id"] = "own-1"
    answered(callback, data, **event)
    assert left() == [Decimal(500), Decimal(1)]


@pytest.mark.parametrize(
    "answer",
    [
        SimpleNamespace(usage={"prompt_tokens": 10, "completion_tokens": 20}),
        {"usage": {"input_tokens": 4, "cache_read_input_tokens": 6, "output_tokens": 20}},
    ],
)
def test_an_answer_that_a_guardrail_refuses_is_counted(answer: Any) -> None:
    callback, left = budget(["tpm=1000/never"])
    data = {"model": "m", "litellm_call_id": "1", "max_tokens": 500}

    async def main() -> None:
        await callback.async_pre_call_hook(None, None, data, "acompletion")
        await callback.async_post_call_success_deployment_hook(data, answer, "acompletion")
        await callback.async_post_call_failure_hook(data, HTTPException(400, "blocked"), None)

    asyncio.run(main())
    assert left() == [Decimal(970)]


def test_a_correction_that_is_cancelled_is_made_later() -> None:
    callback, left = budget(["tpm=1000/never"])
    limiter = callback._limiter()
    data = {"model": "m", "litellm_call_id": "1", "max_tokens": 500}

    async def main() -> None:
        await callback.async_pre_call_hook(None, None, data, "acompletion")
        event = callback.async_log_success_event({"litellm_call_id": "1"} | usage(10, 20), None, None, None)
        task = asyncio.create_task(event)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        for _ in range(200):
            if (await limiter.peek("anonymous", "llm"))[0].available == 970:
                return
            await asyncio.sleep(0.05)

    asyncio.run(main())
    assert left() == [Decimal(970)]


@pytest.mark.parametrize(
    ("request_data", "tokens"),
    [
        ({"prompt": ["a", "b"], "max_tokens": 100}, 200),
        ({"best_of": 5, "n": 2, "max_tokens": 100}, 500),
        ({"max_completion_tokens": 1, "max_tokens": 400}, 400),
        ({"max_tokens": "400"}, 400),
        ({"max_tokens": 400.0}, 400),
        ({"generationConfig": {"maxOutputTokens": 400}}, 400),
        ({"max_tokens": None, "n": 2}, 20),
        ({"prompt": [1, 2, 3], "max_tokens": float("nan")}, 10),
        ({"max_tokens": -1}, 10),
    ],
)
def test_the_most_output_is_that_of_all_choices(request_data: dict[str, Any], tokens: int) -> None:
    assert output_tokens(request_data, 10) == tokens


def test_of_an_event_the_text_counts() -> None:
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}}
    assert text_bytes(b"event: content_block_delta\ndata: " + json.dumps(delta).encode() + b"\n\n") == 5
    assert text_bytes(b'event: message_stop\ndata: {"type":"message_stop"}\n\n') == 0
    assert text_bytes(b"plain text") == 10
    # Others are counted whole.
    gemini = {"candidates": [{"content": {"parts": [{"text": "hello"}]}}]}
    line = b"data: " + json.dumps(gemini).encode()
    assert text_bytes(line + b"\n\n") == len(line)
    assert text_bytes(gemini) == len(line) - 6


def test_no_part_of_a_prompt_hides_its_size() -> None:
    text, schema = "x" * 3_000, {"properties": {"y" * 3_000: {"type": "string"}}}
    hidden = {"messages": [{"type": "message_file", "content": text}]}
    for data in (hidden, {"systemInstruction": text}, {"response_format": schema}, {"text": {"format": schema}}):
        assert prompt_tokens(data) >= 1_000


def test_a_model_that_litellm_learns_later_has_its_price(monkeypatch: pytest.MonkeyPatch) -> None:
    import litellm
    import sluicegate.litellm

    monkeypatch.setattr(sluicegate.litellm, "PRICES_S", 0)
    callback, left = budget(["usd=1/never"])
    data = {"model": "mine", "litellm_call_id": "1", "max_tokens": 10}
    with pytest.raises(HTTPException, match="no price"):
        answered(callback, data)
    cost = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.002, "since": timedelta(1)}
    monkeypatch.setitem(litellm.model_cost, "mine", cost)
    answered(callback, data, model="mine", **usage(100, 50))
    assert left() == [Decimal("0.8")]


@pytest.mark.parametrize("name", ["bob_x.com#EXT#@tenant", "a" * 300, "line\nbreak", "sk-secret"])
def test_any_user_has_an_entity(name: str) -> None:
    limiter = sluicegate.memory(limits=["rpm=10/never"])
    callback = SluicegateLogger(
        lambda: limiter, counts=["rpm"], entity="user", resource=lambda auth, data: "llm"
    )
    asyncio.run(callback.async_pre_call_hook(SimpleNamespace(user_id=name), None, {"model": "m"}, "acompletion"))
    entity = hashlib.sha256(name.encode()).hexdigest()
    assert [status.available for status in limiter.peek(entity, "llm").sync()] == [Decimal(9)]


def test_settings_that_count_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="'rpd'"):
        SluicegateLogger(sluicegate.memory, counts=["rpd"])
    with pytest.raises(ValueError, match="Redis stores no limits"):
        from_environment({"SLUICEGATE_REDIS_URL": "redis://127.0.0.1", "SLUICEGATE_COUNTS": "rpm"})
    callback, _ = budget(["eur=1/never"])
    with pytest.raises(HTTPException, match="no price"):
        answered(callback, {"model": "gpt-4o-mini", "max_tokens": 10})


def test_an_answer_of_the_cache_costs_nothing(proxy: Proxy) -> None:
    async def main() -> None:
        async with proxy.client() as client:
            for _ in range(2):
                body = call("cached") | {"cache": {"use-cache": True}}
                assert (await send(client, body)).status_code == 200
                billed = str(proxy.models.billed["cached"])
                spends(proxy, "cached", billed, billed)

    asyncio.run(main())
    assert proxy.models.tokens["cached"] == 30
    proxy.settles(
        "cached", {"rpm": FULL["rpm"] - 2, "tpm": FULL["tpm"] - 30, "usd": FULL["usd"] - Decimal("0.0000135")}
    )


def test_refusals_say_when_to_come_back_and_how_much_is_too_much(proxy: Proxy) -> None:
    async def main() -> list[httpx.Response]:
        async with proxy.client() as client:
            # All of the budget, then a little more.
            assert (await send(client, call("poor", output=33_000))).status_code == 200
            billed = str(proxy.models.billed["poor"])
            spends(proxy, "poor", billed, billed)
            return [
                await send(client, call("poor", output=1_000)),
                await send(client, call("poor", output=50_000)),
                await send(client, call("poor", model="unpriced")),
            ]

    short, never, unpriced = asyncio.run(main())
    now = time.time()
    month = time.gmtime(now).tm_mon
    next_month = calendar.timegm((time.gmtime(now).tm_year + month // 12, month % 12 + 1, 1, 0, 0, 0))
    assert short.status_code == 429
    assert abs(int(short.headers["retry-after"]) - (next_month - now)) < 5
    assert (never.status_code, "retry-after" in never.headers) == (400, False)
    assert unpriced.status_code == 400 and "no price" in unpriced.text


def test_the_refusal_of_one_callback_gives_back_the_tokens_of_another(proxy: Proxy) -> None:
    import litellm

    limiter = sluicegate.memory(limits=["tpm=100/never"])
    second = SluicegateLogger(
        lambda: limiter, counts=["tpm"], entity="end_user", resource=lambda auth, data: "llm"
    )

    async def main() -> list[int]:
        async with proxy.client() as client:
            return [(await send(client, call("two", output=output))).status_code for output in (20, 60)]

    litellm.callbacks.append(second)
    try:
        assert asyncio.run(main()) == [200, 429]
    finally:
        litellm.callbacks.remove(second)
    proxy.settles(
        "two", {"rpm": FULL["rpm"] - 1, "tpm": FULL["tpm"] - 30, "usd": FULL["usd"] - Decimal("0.0000135")}
    )


def use(callback: SluicegateLogger) -> None:
    """The proxy's callback, from now on."""
    import litellm

    for callbacks in (litellm.callbacks, litellm.success_callback, litellm._async_success_callback):
        for found in [found for found in callbacks if isinstance(found, SluicegateLogger)]:
            callbacks.remove(found)
    litellm.callbacks.append(callback)


@pytest.mark.parametrize("policy", ["allow", "deny", "local"])
def test_the_policy_decides_while_the_store_is_cut_off(
    proxy: Proxy, policy: Literal["allow", "deny", "local"]
) -> None:
    cable, user = Cable(proxy.engine.endpoint_url), f"outage-{policy}"
    limiter = sluicegate.dynamodb(
        proxy.engine.table,
        endpoint_url=cable.url,
        limits=["rpm=1000000/never", "tpm=3000000/never", "usd=0.02/month"],
        on_unavailable=policy,
        deadline=timedelta(milliseconds=250),
    )
    callback = SluicegateLogger(lambda: limiter, counts=["rpm", "tpm", "usd"], entity="end_user")
    use(callback)
    taken: list[tuple[str, int, str | None]] = []

    async def caller(client: httpx.AsyncClient, n: int, phase: list[str]) -> None:
        while phase[0] != "end":
            during = phase[0]
            response = await send(client, call(user, stream=n % 2 == 0, output=5, wait=0.05))
            if during == phase[0]:
                taken.append((during, response.status_code, response.headers.get("retry-after")))
            if response.status_code != 200:
                await asyncio.sleep(0.05)

    async def main() -> None:
        phase = [""]

        async def some(name: str, seconds: float = 0) -> None:
            phase[0], end = name, time.monotonic() + seconds
            while len([entry for entry in taken if entry[0] == name]) < 16 or time.monotonic() < end:
                await asyncio.sleep(0.02)

        async with proxy.client() as client:
            callers = [asyncio.create_task(caller(client, n, phase)) for n in range(8)]
            await some("before")
            phase[0] = "cutting"
            cable.run(cable.set(whole=False))
            await asyncio.sleep(0.5)
            await some("cut", OUTAGE_S)
            phase[0] = "mending"
            cable.run(cable.set(whole=True))
            # The store is probed every quarter of a second.
            await asyncio.sleep(0.5)
            await some("after")
            phase[0] = "end"
            await asyncio.gather(*callers)

    asyncio.run(main())
    answers = {phase: {entry[1:] for entry in taken if entry[0] == phase} for phase in ("before", "cut", "after")}
    granted: tuple[int, str | None] = (200, None)
    assert answers["before"] == {granted}
    assert answers["cut"] == {(503, "5") if policy == "deny" else granted}
    assert granted in answers["after"]
    billed = proxy.models.billed[user]
    least, most = {
        # The store does not learn of the calls that it did not decide.
        "allow": (Decimal(0), billed),
        # No call goes uncounted. Of the calls at the cut, an estimate may stay taken.
        "deny": (billed, billed + 8 * ESTIMATE_USD),
        # The store is told the estimates of the calls that this process decided.
        "local": (billed, len(taken) * 2 * ESTIMATE_USD),
    }[policy]
    spends(proxy, user, str(least), str(most))
    callback.close()
