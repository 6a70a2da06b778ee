"""Random operations of several processes, counted to the millitoken."""

import asyncio
import random
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from multiprocessing import get_context

import pytest

import sluicegate

PROCESSES, TASKS, OPERATIONS = 4, 16, 80
ENTITIES = ["one", "two", "three"]
FULL = 200_000
# After half a second without an answer, a limiter asks again.
SLOW_S = 0.4


def tokens(milli: int) -> Decimal:
    return Decimal(milli) / 1000


def producer(endpoint_url: str, table: str, seed: int, leasing: bool) -> dict[str, tuple[int, int]]:
    """Takes, corrects, releases and cancels at random. Returns the millitokens that stay taken: the least
    and the most. They differ only if the engine was slow: then the answer to a write may be lost."""
    limiter = sluicegate.dynamodb(
        table,
        endpoint_url=endpoint_url,
        limits=[f"tpm={FULL}/never"],
        leasing="strict" if leasing else None,
        on_unavailable="deny",
        deadline=timedelta(seconds=60),
    )
    kept: dict[str, tuple[int, int]] = dict.fromkeys(ENTITIES, (0, 0))
    cancelled, slowest = dict.fromkeys(ENTITIES, 0), 0.0

    async def settle(entity: str, amount: int, correction: sluicegate.Call[None] | None, to: int) -> None:
        ends = [to, to]
        if correction is not None:
            try:
                await correction
            except (sluicegate.UnavailableError, sluicegate.AmbiguousError):
                ends = sorted([amount, to])
        least, most = kept[entity]
        kept[entity] = (least + ends[0], most + ends[1])

    async def operation(dice: random.Random) -> None:
        entity, amount = dice.choice(ENTITIES), dice.randint(1, 5_000)
        request = limiter.acquire(entity, f"r{leasing}", {"tpm": tokens(amount)})
        nonlocal slowest
        began = time.monotonic()
        task = asyncio.ensure_future(request)
        if dice.random() < 0.3:
            await asyncio.sleep(dice.choice([0, 0.001, 0.003, 0.01, 0.03]))
            task.cancel()
        try:
            permit = await task
        except asyncio.CancelledError:
            cancelled[entity] += amount
            return
        slowest = max(slowest, time.monotonic() - began)
        correction, to = None, amount
        match dice.randrange(4):
            case 0:
                correction, to = permit.release(), 0
            case 1:
                more = dice.randint(1 - amount, 2_000) or 1
                correction, to = permit.adjust(tpm=tokens(more)), amount + more
            case 2:
                to = dice.randint(0, 6_000)
                correction = permit.correct_to(tpm=tokens(to))
        await settle(entity, amount, correction, to)

    async def task(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(OPERATIONS):
            await operation(dice)

    async def main() -> None:
        await asyncio.gather(*(task(seed * 100 + n) for n in range(TASKS)))
        # The next write on a bucket gives back the tokens of cancelled tasks.
        await asyncio.sleep(0.5)
        for entity in ENTITIES:
            await (await limiter.acquire(entity, f"r{leasing}", {"tpm": 1})).release()
        await limiter.close()

    asyncio.run(main())
    doubt = slowest > SLOW_S
    return {entity: (least, most + doubt * cancelled[entity]) for entity, (least, most) in kept.items()}


@pytest.mark.parametrize("leasing", [False, True])
def test_what_was_granted_is_what_is_gone_and_what_was_used(
    sluicegate_local: sluicegate.Local, leasing: bool
) -> None:
    engine, began = sluicegate_local, datetime.now(timezone.utc) - timedelta(hours=2)
    given = [engine.endpoint_url] * PROCESSES, [engine.table] * PROCESSES
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        kept = list(pool.map(producer, *given, range(PROCESSES), [leasing] * PROCESSES))
    limiter = engine.limiter()
    for entity in ENTITIES:
        (status,) = limiter.peek(entity, f"r{leasing}").sync()
        gone = FULL - status.available
        least, most = (sum(of_process[entity][end] for of_process in kept) for end in (0, 1))
        assert 0 < tokens(least) <= gone <= tokens(most)
        used, until = Decimal(0), time.monotonic() + 30
        while used != gone and time.monotonic() < until:
            time.sleep(0.1)
            windows = limiter.usage(entity, f"r{leasing}", since=began).sync()
            used = sum((window.consumed["tpm"] for window in windows), Decimal(0))
        assert used == gone
