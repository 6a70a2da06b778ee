"""The package as its users see it."""

import asyncio
import os
import random
import re
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from decimal import Decimal
from multiprocessing import get_context
from pathlib import Path

import pytest

import sluicegate

TABLE = "sluicegate-limits"


def left(limiter: sluicegate.Limiter, entity: str, limits: list[str]) -> list[Decimal]:
    async def peek() -> list[Decimal]:
        return [status.available for status in await limiter.peek(entity, "r", limits=limits)]

    return asyncio.run(peek())


def test_the_example_prints_what_the_page_says() -> None:
    page = (Path(__file__).parent.parent / "README.md").read_text()
    program, printed = re.findall(r"```(?:python|text)\n(.*?)```", page, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (printed, "")


def test_a_refusal_carries_the_time_and_the_limits() -> None:
    limiter = sluicegate.memory(limits=["rpm=60/min", "tpm=100/never"])
    permit = limiter.acquire_sync("u", "r", {"rpm": 60, "tpm": 40})
    rpm, tpm = permit.remaining
    assert (rpm.limit, tpm.limit, tpm.available) == ("rpm", "tpm", Decimal(60))
    assert rpm.available < 1
    with pytest.raises(sluicegate.LimitExceededError) as refused:
        limiter.acquire_sync("u", "r", {"rpm": 1, "tpm": 1})
    assert refused.value.retry_after is not None
    assert timedelta(milliseconds=500) < refused.value.retry_after <= timedelta(seconds=1)
    assert [(status.rule, status.violated) for status in refused.value.limits] == [
        ("rpm=60/min", True),
        ("tpm=100/never", False),
    ]
    with pytest.raises(sluicegate.LimitExceededError) as never:
        limiter.acquire_sync("u", "r", {"tpm": 61})
    assert never.value.retry_after is None
    with pytest.raises(sluicegate.NeverAdmissibleError):
        limiter.acquire_sync("u", "r", {"tpm": 101})


def test_a_body_that_raises_gives_everything_back() -> None:
    limits = ["usd=1/never"]
    limiter = sluicegate.memory(limits=limits)

    async def work(fails: bool) -> None:
        async with limiter.acquire("u", "r", {"usd": "0.3"}) as permit:
            await permit.adjust(usd=Decimal("0.1"))
            if fails:
                raise KeyError("the model failed")

    asyncio.run(work(False))
    assert left(limiter, "u", limits) == [Decimal("0.6")]
    with pytest.raises(KeyError):
        asyncio.run(work(True))
    assert left(limiter, "u", limits) == [Decimal("0.6")]
    with pytest.raises(KeyError), limiter.acquire("u", "r", {"usd": "0.6"}):
        assert left(limiter, "u", limits) == [0]
        raise KeyError("the model failed")
    with limiter.acquire("u", "r", {"usd": "0.6"}) as permit:
        permit.correct_to_sync(usd="0.000000001")
    assert left(limiter, "u", limits) == [Decimal("0.599999999")]
    permit.release_sync()
    permit.release_sync()
    assert left(limiter, "u", limits) == [Decimal("0.6")]


def test_wrong_input_is_named_and_takes_nothing() -> None:
    limiter = sluicegate.memory(limits=["rpm=10/never"])
    wrong: list[tuple[dict[str, sluicegate.Amount], str]] = [
        ({"rpm": "1e3"}, "rpm"),
        ({"rpm": "0.0001"}, "decimals"),
        ({"r#m": 1}, "r#m"),
        ({}, "no"),
        ({"tpm": 1}, "tpm"),
    ]
    for consume, expected in wrong:
        with pytest.raises(sluicegate.InvalidRequestError, match=expected):
            limiter.acquire_sync("u", "r", consume)
    with pytest.raises(sluicegate.InvalidRequestError, match="rpm=10"):
        sluicegate.memory(limits=["rpm=10"])
    with pytest.raises(sluicegate.InvalidRequestError, match="strict"):
        sluicegate.memory(leasing="lenient")  # type: ignore[arg-type]
    with pytest.raises(sluicegate.InvalidRequestError, match="both"):
        limiter.acquire("u", "r", {"rpm": 1}, parent="team", no_cascade=True)
    assert left(limiter, "u", []) == [10]


def test_waiting_blocks_no_other_task_and_cancelling_takes_nothing() -> None:
    limiter = sluicegate.memory(limits=["slow=1/2s"])

    async def main() -> int:
        await limiter.acquire("u", "r", {"slow": 1})
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        waits = limiter.acquire("u", "r", {"slow": 1}, wait=timedelta(seconds=30))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(waits, 0.3)
        # The cancelled task does not take the token that comes.
        async with limiter.acquire("u", "r", {"slow": 1}, wait=timedelta(seconds=30)):
            pass
        ticking.cancel()
        return ticks

    assert asyncio.run(main()) > 20


def test_several_event_loops_and_threads_share_a_limiter() -> None:
    limiter = sluicegate.memory(limits=["rpm=64/never"])
    granted: list[int] = []

    async def some() -> None:
        requests = [limiter.acquire("u", "r", {"rpm": 1}) for _ in range(20)]

        async def one(request: sluicegate.Acquire) -> int:
            try:
                await request
                return 1
            except sluicegate.LimitExceededError:
                return 0

        granted.extend(await asyncio.gather(*map(one, requests)))

    threads = [threading.Thread(target=lambda: asyncio.run(some())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(granted), sum(granted)) == (80, 64)


def test_a_limiter_from_before_a_fork_says_so() -> None:
    limiter = sluicegate.memory(limits=["rpm=1/never"])
    child = os.fork()
    if child == 0:
        try:
            limiter.acquire_sync("u", "r", {"rpm": 1})
        except RuntimeError as error:
            os._exit(0 if "make a limiter in each process" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def producer(endpoint_url: str, seed: int, leasing: bool) -> int:
    """Takes, corrects and releases at random; returns the millitokens that stay taken."""
    limiter = sluicegate.dynamodb(
        TABLE,
        endpoint_url=endpoint_url,
        leasing="strict" if leasing else None,
        on_unavailable="deny",
        deadline=timedelta(seconds=30),
    )
    kept = 0

    async def task(seed: int) -> None:
        nonlocal kept
        dice = random.Random(seed)
        for _ in range(20):
            amount = dice.randint(1, 5_000)
            request = limiter.acquire(
                f"exact-{leasing}", "r", {"tpm": Decimal(amount) / 1000}, limits=["tpm=2000/never"]
            )
            try:
                permit = await request
            except sluicegate.LimitExceededError:
                continue
            act = dice.random()
            if act < 0.3:
                await permit.release()
            elif act < 0.6:
                more = dice.randint(-amount, 2_000)
                await permit.adjust(tpm=Decimal(more) / 1000)
                kept += amount + more
            else:
                kept += amount

    async def main() -> None:
        await asyncio.gather(*(task(seed * 100 + n) for n in range(16)))
        await limiter.close()

    asyncio.run(main())
    return kept


@pytest.mark.parametrize("leasing", [False, True])
def test_four_processes_are_exact(endpoint_url: str, leasing: bool) -> None:
    with ProcessPoolExecutor(4, get_context("spawn")) as pool:
        kept = sum(pool.map(producer, [endpoint_url] * 4, range(4), [leasing] * 4))
    limiter = sluicegate.dynamodb(TABLE, endpoint_url=endpoint_url)
    assert left(limiter, f"exact-{leasing}", []) == [Decimal(2_000_000 - kept) / 1000]


def test_a_prepared_request_is_decided_in_memory(endpoint_url: str) -> None:
    limiter = sluicegate.dynamodb(TABLE, endpoint_url=endpoint_url, leasing="strict", on_unavailable="deny")

    async def main() -> int:
        request = limiter.acquire("held", "r", {"rpm": 1}, limits=["rpm=10000/never"], no_cascade=True)
        prepared = await limiter.prepare(request)
        await prepared.acquire()
        held = 0
        while held < 5_000:
            if prepared.try_acquire():
                held += 1
            else:
                await prepared.acquire()
                held += 1
        await limiter.close()
        return held + 1

    taken = asyncio.run(main())
    assert left(limiter, "held", []) == [10_000 - taken]
    with pytest.raises(sluicegate.InvalidRequestError, match="leas"):
        plain = sluicegate.memory(limits=["rpm=1/min"])

        async def prepare() -> None:
            await plain.prepare(plain.acquire("u", "r", {"rpm": 1}))

        asyncio.run(prepare())
