"""zae-limiter as a contestant of `cargo xtask compare`.

usage: zae.py ENDPOINT_URL
The protocol is described in tests/examples/compare/protocol.rs.
"""

import asyncio
import itertools
import json
import logging
import sys
import time
import uuid
import warnings
from importlib.metadata import version

from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository

WARM_UP_TASKS = 16


async def connect(endpoint_url: str) -> RateLimiter:
    """A table of its own, as the package defines it. Its stream is turned off: the engine is slower with it."""
    place = {"region": "us-east-1", "endpoint_url": endpoint_url}
    name = f"zae-{uuid.uuid4().hex[:8]}"
    repository = Repository(name=name, **place)
    await repository.create_table()
    client = await repository._get_client()
    await client.update_table(TableName=name, StreamSpecification={"StreamEnabled": False})
    if not hasattr(Repository, "open"):
        # 0.8.1 looks for its Lambda function unless it is told not to.
        return RateLimiter(repository=repository, skip_version_check=True)
    # Otherwise `open` would deploy a stack with the function.
    await repository._register_namespace("default")
    return RateLimiter(repository=await Repository.open(stack=name, **place))


def parse_limits(text: str) -> list[Limit]:
    limits = []
    for one in text.split(","):
        name, rule = one.split("=")
        tokens, seconds = map(int, rule.split("/"))
        shape = {"refill_amount": tokens, "refill_period_seconds": seconds}
        limits.append(Limit.custom(name, capacity=tokens, **shape))
    return limits


async def run(limiter: RateLimiter, limits: list[Limit], tasks: int, next_key) -> dict:
    consume = {limit.name: 1 for limit in limits}
    counts = {"admitted": 0, "refused": 0, "failed": 0, "error": None}
    times: list[int] = []

    async def task() -> None:
        while (key := next_key()) is not None:
            start = time.perf_counter_ns()
            try:
                async with limiter.acquire(key, "api", consume, limits=limits):
                    pass
                counts["admitted"] += 1
            except RateLimitExceeded:
                counts["refused"] += 1
            except Exception as error:  # Whatever it is, it is reported.
                counts["failed"] += 1
                counts["error"] = f"{type(error).__name__}: {error}"
            times.append(time.perf_counter_ns() - start)

    start = time.perf_counter()
    await asyncio.gather(*(task() for _ in range(tasks)))
    counts["seconds"] = time.perf_counter() - start
    times.sort()
    for name, share in (("p50_us", 0.5), ("p99_us", 0.99)):
        counts[name] = times[round((len(times) - 1) * share)] / 1000
    return counts


async def answer(limiter: RateLimiter, words: list[str]) -> dict:
    numbers = itertools.count()
    match words:
        case ["warm", limits, keys]:
            return await run(
                limiter,
                parse_limits(limits),
                WARM_UP_TASKS,
                lambda: f"key-{n}" if (n := next(numbers)) < int(keys) else None,
            )
        case ["slice", limits, tasks, keys, millis]:
            end = time.perf_counter() + int(millis) / 1000
            return await run(
                limiter,
                parse_limits(limits),
                int(tasks),
                lambda: f"key-{next(numbers) % int(keys)}" if time.perf_counter() < end else None,
            )
        case ["ask", key, limits, tasks, count]:
            return await run(
                limiter,
                parse_limits(limits),
                int(tasks),
                lambda: key if next(numbers) < int(count) else None,
            )
    raise ValueError(f"no such command: {words}")


async def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    limiter = await connect(sys.argv[1])
    print(json.dumps({"version": version("zae-limiter")}), flush=True)
    # Nothing of this process runs while it waits for a line.
    for line in sys.stdin:
        print(json.dumps(await answer(limiter, line.split())), flush=True)
    await limiter.close()


asyncio.run(main())
