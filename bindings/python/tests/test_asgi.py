"""The middleware around a small application, asked by httpx: an example for users too."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import sluicegate
from sluicegate.asgi import RateLimitMiddleware, header, rate_limit_fields
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def chat(request: Request) -> JSONResponse:
    tokens = int(request.query_params.get("tokens", "100"))
    if "permit" in request.scope.get("state", {}):
        # The cost is known now.
        await request.state.permit.correct_to(tpm=tokens)
    return JSONResponse({"tokens": tokens})


def application(limiter: sluicegate.Limiter | Callable[[], sluicegate.Limiter], **settings: Any) -> Starlette:
    app = Starlette(routes=[Route("/chat", chat)])
    settings.setdefault("consume", {"rpm": 1, "tpm": 500})
    app.add_middleware(
        RateLimitMiddleware, limiter=limiter, entity=lambda scope: header(scope, "x-user"), **settings
    )
    return app


def ask(app: Starlette, *paths: str, user: str | None = "ada") -> list[httpx.Response]:
    async def main() -> list[httpx.Response]:
        headers = {} if user is None else {"x-user": user}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
            return [await client.get(path, headers=headers) for path in paths]

    return asyncio.run(main())


def test_an_application_is_limited_and_corrects_the_cost() -> None:
    limiter = sluicegate.memory(limits=["rpm=100/min", "tpm=1000/h"])
    first, second, refused = ask(application(limiter), "/chat?tokens=300", "/chat?tokens=400", "/chat")
    assert first.headers["ratelimit-policy"] == '"rpm";q=100;w=60, "tpm";q=1000;w=3600'
    # The handler corrected it: 300 tokens of 1,000 an hour come back in 1,080 seconds.
    assert first.headers["ratelimit"] == '"rpm";r=99;t=1, "tpm";r=700;t=1080'
    assert second.headers["ratelimit"].startswith('"rpm";r=98;t=2, "tpm";r=300;t=25')
    # 300 tokens are left, and 200 come back in 720 seconds.
    assert refused.status_code == 429
    assert refused.headers["content-type"] == "application/problem+json"
    wait = int(refused.headers["retry-after"])
    assert 715 <= wait <= 720
    assert refused.headers["ratelimit"] == f'"rpm";r=98;t=2, "tpm";r=300;t={wait}'
    assert refused.json() == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "wait as long as Retry-After says",
        "violated-policies": ["tpm"],
    }


def test_each_worker_of_an_application_from_before_a_fork_makes_its_limiter() -> None:
    made: list[int] = []

    def make() -> sluicegate.Limiter:
        made.append(os.getpid())
        return sluicegate.memory(limits=["rpm=1/min", "tpm=1000/h"])

    app = application(make)
    child = os.fork()
    if child == 0:
        try:
            statuses = [response.status_code for response in ask(app, "/chat", "/chat")]
            os._exit(0 if (statuses, made) == ([200, 429], [os.getpid()]) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [response.status_code for response in ask(app, "/chat", "/chat")] == [200, 429]
    assert made == [os.getpid()]


def test_no_field_asks_for_more_patience_than_retry_after() -> None:
    app = application(sluicegate.memory(limits=["rpm=1/min", "tpm=1000/d"]))
    granted, refused = ask(app, "/chat?tokens=500", "/chat")
    assert granted.headers["ratelimit"].endswith('"tpm";r=500;t=43200')
    wait = int(refused.headers["retry-after"])
    assert 55 <= wait <= 60
    assert refused.headers["ratelimit"] == f'"rpm";r=0;t={wait}, "tpm";r=500;t={wait}'


def test_a_slow_limit_asks_for_no_more_patience_either() -> None:
    app = application(sluicegate.memory(limits=["tpm=1/d"]), consume={"tpm": 1})
    _, refused = ask(app, "/chat?tokens=1", "/chat")
    assert refused.headers["ratelimit"] == f'"tpm";r=0;t={refused.headers["retry-after"]}'


def test_requests_share_neither_a_message_nor_a_permit() -> None:
    constant: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
    seen: list[sluicegate.Permit] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["state"]["permit"])
        await send(constant)
        await send({"type": "http.response.body", "body": b""})

    limited = RateLimitMiddleware(
        app, limiter=sluicegate.memory(limits=["rpm=9/min"]), entity=lambda scope: "ada", consume={"rpm": 1}
    )
    state = {"of": "the connection"}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    async def main() -> None:
        for _ in range(2):
            await limited({"type": "http", "headers": [], "state": state}, receive, send)

    asyncio.run(main())
    assert constant["headers"] == [] and list(state) == ["of"] and seen[0] is not seen[1]
    assert [len(message["headers"]) for message in sent[::2]] == [2, 2]


@pytest.mark.parametrize("entity", ["a#b", "\ud800"])
def test_a_name_that_no_entity_has_is_a_bad_request(entity: str) -> None:
    limiter = sluicegate.memory(limits=["rpm=9/min"])
    app = Starlette(routes=[Route("/chat", chat)])
    app.add_middleware(RateLimitMiddleware, limiter=limiter, entity=lambda scope: entity, consume={"rpm": 1})
    assert [response.status_code for response in ask(app, "/chat")] == [400]


def test_a_request_without_an_entity_is_not_limited() -> None:
    (response,) = ask(application(sluicegate.memory(limits=["rpm=1/never", "tpm=1/never"])), "/chat", user=None)
    assert response.status_code == 200 and "ratelimit" not in response.headers


@pytest.mark.parametrize(
    ("limits", "consume", "violated"),
    [(["rpm=1/min"], {"rpm": 2}, ["rpm"]), (["usd=1/never"], {"usd": "1.000001"}, ["usd"])],
)
def test_requests_that_never_fit_are_bad_requests(
    limits: list[str], consume: dict[str, Any], violated: list[str]
) -> None:
    (response,) = ask(application(sluicegate.memory(limits=limits), consume=consume), "/chat")
    assert (response.status_code, response.json()["title"]) == (400, "Bad Request")
    assert "retry-after" not in response.headers
    assert response.json()["violated-policies"] == violated


def test_a_limit_that_is_unknown_is_an_error_of_the_program() -> None:
    (response,) = ask(application(sluicegate.memory(limits=["rpm=1/min"]), consume={"tpm": 2}), "/chat")
    assert (response.status_code, response.json()["title"]) == (500, "Internal Server Error")


def test_a_store_that_does_not_answer_is_503() -> None:
    limiter = sluicegate.dynamodb(
        "t", endpoint_url="http://127.0.0.1:1", region="us-east-1", limits=["rpm=1/min"], on_unavailable="deny"
    )
    (response,) = ask(application(limiter, consume={"rpm": 1}), "/chat")
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize(
    ("limit", "taken", "policy", "left"),
    [
        ("rpm=100/min,burst=200", "50.5", '"rpm";q=200;w=60', '"rpm";r=149;t=31'),
        ("rpm=10/min,capacity=100", "1", '"rpm";q=100;w=60', '"rpm";r=99;t=6'),
        ("half=8/500ms", "3", '"half";q=8', '"half";r=5;t=1'),
        ("slow=2/2d", "2", '"slow";q=2;w=172800', '"slow";r=0;t=172800'),
        ("files=5/never", "1", '"files";q=5', '"files";r=4'),
        ("usd=5/month@15,tz=Europe/Berlin", "0.25", '"usd";q=5000000', '"usd";r=4750000'),
    ],
)
def test_the_fields_are_whole_and_rounded_against_hope(limit: str, taken: str, policy: str, left: str) -> None:
    limiter = sluicegate.memory(limits=[limit])
    permit = limiter.acquire("u", "r", {limit.split("=")[0]: taken}).sync()
    fields = dict(rate_limit_fields(permit.remaining, "u"))
    assert fields == {b"ratelimit-policy": policy.encode(), b"ratelimit": left.encode()}
    renamed = dict(rate_limit_fields(permit.remaining, "another"))
    assert renamed[b"ratelimit"].startswith(b'"parent:')
