"""The Python package of this project as a contestant of `cargo xtask compare`.

usage: ours.py ENDPOINT_URL [leased|held]
`leased` awaits each request of a limiter that leases; `held` takes what is held without awaiting.
The protocol is described in tests/examples/compare/protocol.rs.
"""

import asyncio
import itertools
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import version

import sluicegate

WARM_UP_TASKS = 16
DEADLINE = timedelta(seconds=10)


def parse_limits(text: str) -> list[sluicegate.Limit]:
    limits = []
    for one in text.split(","):
        name, rule = one.split("=")
        tokens, seconds = rule.split("/")
        limits.append(sluicegate.Limit(f"{name}={tokens}/{seconds}s"))
    return limits


async def run(
    limiter: sluicegate.Limiter,
    limits: list[sluicegate.Limit],
    tasks: int,
    next_key: Callable[[], str | None],
    is_held: bool,
) -> dict[str, object]:
    consume: dict[str, sluicegate.Amount] = {limit.name: 1 for limit in limits}
    admitted = refused = failed = 0
    error = None
    times: list[int] = []

    async def task() -> None:
        nonlocal admitted, refused, failed, error
        while (key := next_key()) is not None:
            start = time.perf_counter_ns()
            try:
                if not (is_held and limiter.try_acquire(key, "api", consume, limits=limits)):
                    await limiter.acquire(key, "api", consume, limits=limits)
                admitted += 1
            except sluicegate.LimitExceededError:
                refused += 1
            except sluicegate.SluicegateError as other:
                failed += 1
                error = f"{type(other).__name__}: {other}"
            times.append(time.perf_counter_ns() - start)

    start = time.perf_counter()
    await asyncio.gather(*(task() for _ in range(tasks)))
    counts = {"admitted": admitted, "refused": refused, "failed": failed, "error": error}
    counts["seconds"] = time.perf_counter() - start
    times.sort()
    for name, share in (("p50_us", 0.5), ("p99_us", 0.99)):
        counts[name] = times[round((len(times) - 1) * share)] / 1000
    return counts


async def answer(limiter: sluicegate.Limiter, words: list[str], is_held: bool) -> dict[str, object]:
    numbers = itertools.count()

    def until(count: int, key: Callable[[int], str]) -> Callable[[], str | None]:
        return lambda: key(n) if (n := next(numbers)) < count else None

    match words:
        case ["warm", limits, keys]:
            next_key, tasks = until(int(keys), "key-{}".format), WARM_UP_TASKS
        case ["slice", limits, given, keys, millis]:
            end, tasks = time.perf_counter() + int(millis) / 1000, int(given)
            next_key = lambda: (  # noqa: E731
                f"key-{next(numbers) % int(keys)}" if time.perf_counter() < end else None
            )
        case ["ask", key, limits, given, count]:
            next_key, tasks = until(int(count), lambda _: key), int(given)
        case _:
            raise ValueError(f"no such command: {words}")
    return await run(limiter, parse_limits(limits), tasks, next_key, is_held)


def turn_stream_off(endpoint_url: str, table: str) -> None:
    """As those of the peers are: the engine is slower with it. The engine takes any signature."""
    headers = {
        "Authorization": "AWS4-HMAC-SHA256 Credential=local, SignedHeaders=host, Signature=local",
        "Content-Type": "application/x-amz-json-1.0",
        "X-Amz-Date": "20260101T000000Z",
        "X-Amz-Target": "DynamoDB_20120810.UpdateTable",
    }
    body = {"TableName": table, "StreamSpecification": {"StreamEnabled": False}}
    request = urllib.request.Request(endpoint_url, json.dumps(body).encode(), headers)
    urllib.request.urlopen(request).close()


async def main() -> None:
    mode = sys.argv[2] if len(sys.argv) > 2 else "plain"
    table = f"sluicegate-{os.getpid()}"
    limiter = sluicegate.dynamodb(
        table,
        endpoint_url=sys.argv[1],
        region="us-east-1",
        leasing=None if mode == "plain" else "strict",
        on_unavailable="deny",
        deadline=DEADLINE,
    )
    await limiter.create_table()
    turn_stream_off(sys.argv[1], table)
    print(json.dumps({"version": version("sluicegate")}), flush=True)
    # Nothing of this process runs while it waits for a line, but the runtime that gives back.
    for line in sys.stdin:
        print(json.dumps(await answer(limiter, line.split(), mode == "held")), flush=True)
    await limiter.close()


asyncio.run(main())
