"""The memory of a process that goes on for a long time."""

import asyncio
import os
import random
import sys
import time
from pathlib import Path

import pytest

import sluicegate

SECONDS = float(os.environ.get("SLUICEGATE_TEST_GROWTH_SECONDS", "4"))
TASKS, ENTITIES = 8, 50
# The pools of the allocator and the embedded engine, which keeps its newest 10,000 records.
GROWTH_MAX_MIB = 48


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_long_run_does_not_grow(
    sluicegate_local: sluicegate.Local, capsys: pytest.CaptureFixture[str]
) -> None:
    table, url = sluicegate_local.table, sluicegate_local.endpoint_url
    limits = ["rpm=30000/min", "usd=1000000/month"]
    limiters = [
        sluicegate.dynamodb(table, endpoint_url=url, limits=limits),
        sluicegate.dynamodb(table, endpoint_url=url, limits=limits, leasing="strict"),
        sluicegate.memory(limits=limits),
    ]
    leasing = limiters[1]
    leased = leasing.prepare(leasing.acquire("prepared", "leased", {"rpm": 1})).sync()
    done = 0

    async def operation(dice: random.Random) -> None:
        index = dice.randrange(len(limiters))
        limiter, entity = limiters[index], f"user-{dice.randrange(ENTITIES)}"
        request = limiter.acquire(entity, f"r{index}", {"rpm": dice.choice([1, 5_000]), "usd": "0.002"})
        match dice.randrange(6):
            case 0:
                async with request as permit:
                    await permit.adjust(usd="0.001")
            case 1:
                await (await request).release()
            case 2:
                task = asyncio.ensure_future(request)
                await asyncio.sleep(dice.choice([0, 0.001]))
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            case 3:
                await request
            case 4:
                await asyncio.gather(limiter.peek(entity, f"r{index}"), request)
            case 5:
                request.sync() if index == 2 else await request
                leased.try_acquire()

    async def task(seed: int, until: float) -> None:
        nonlocal done
        dice = random.Random(seed)
        while time.monotonic() < until:
            try:
                await operation(dice)
            except sluicegate.SetupError:
                raise
            except sluicegate.SluicegateError:
                pass  # Refused; or the engine did not answer in time, on a busy machine.
            done += 1

    async def main() -> None:
        end = time.monotonic() + SECONDS
        await asyncio.gather(*(task(n, end - 0.8 * SECONDS) for n in range(TASKS)))
        warm, warm_done = resident_mib(), done
        await asyncio.gather(*(task(TASKS + n, end) for n in range(TASKS)))
        for limiter in limiters:
            await limiter.close()
        grown = resident_mib() - warm
        with capsys.disabled():
            print(f"{done - warm_done} operations after {warm_done} more: {warm:.0f} MiB, and {grown:+.1f}")
        assert done > warm_done > 0
        assert grown < GROWTH_MAX_MIB

    asyncio.run(main())
