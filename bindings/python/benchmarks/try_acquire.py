"""Times a decision on leased tokens, beside the cheapest call that this package has.

All forms are timed in turn, in one process; the table has the medians of the rounds.
`cargo xtask bench` runs it with the wheel as it is published.
"""

import asyncio
import statistics
import timeit

import sluicegate

ROUNDS = 300
CALLS = 500
# They admit every call. The background task leases what the next round needs.
LIMITS = ["rpm=1000000000/min", "tpm=1000000000000/min"]

FORMS = {
    "an empty call: the property limiter.shadow": "got = not limiter.shadow",
    "prepared.try_acquire()": "got = prepared.try_acquire()",
    'prepared.try_acquire("user-123")': 'got = prepared.try_acquire("user-123")',
    "limiter.try_acquire(...), 1 limit": 'got = limiter.try_acquire("user-123", "gpt-4", {"rpm": 1})',
    "limiter.try_acquire(...), 2 limits": (
        'got = limiter.try_acquire("user-123", "gpt-4", {"rpm": 1, "tpm": 800})'
    ),
}


async def main() -> None:
    limiter = sluicegate.memory(limits=LIMITS, leasing="strict")
    request = limiter.acquire("user-123", "gpt-4", {"rpm": 1, "tpm": 800}, no_cascade=True)
    prepared = await limiter.prepare(request)
    times: dict[str, list[float]] = {form: [] for form in FORMS}
    for _ in range(ROUNDS):
        for form, statement in FORMS.items():
            for _ in range(3):
                await request
            await asyncio.sleep(0.002)
            found = {"limiter": limiter, "prepared": prepared, "got": None}
            # A round ends granted, so all of it was: tokens that ran out are not back so soon.
            timer = timeit.Timer(statement + "\nassert got", globals=found)
            times[form].append(timer.timeit(CALLS) / CALLS * 1e6)
    empty = statistics.median(next(iter(times.values())))
    print(f"{'microseconds a call, medians of ' + str(ROUNDS) + ' rounds':<48}{'p50':>8}{'of empty':>10}")
    for form, rounds in times.items():
        median = statistics.median(rounds)
        print(f"{form:<48}{median:>8.3f}{median / empty:>9.1f}x")
    await limiter.close()


asyncio.run(main())
