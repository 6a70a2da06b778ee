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
# They admit every call.
LIMITS = ["rpm=1000000000/min", "tpm=1000000000000/min"]

FORMS = {
    "an empty call: the property limiter.shadow": "got = not limiter.shadow",
    "prepared.try_acquire()": "got = prepared.try_acquire()",
    'prepared.try_acquire("user-123")': 'got = prepared.try_acquire("user-123")',
    "the same, with the stored parent of user-123": 'got = cascading.try_acquire("user-123")',
    "limiter.try_acquire(...), 1 limit": 'got = limiter.try_acquire("user-123", "gpt-4", {"rpm": 1})',
    "limiter.try_acquire(...), 2 limits": (
        'got = limiter.try_acquire("user-123", "gpt-4", {"rpm": 1, "tpm": 800})'
    ),
}


async def main() -> None:
    limiter = sluicegate.memory(limits=LIMITS, leasing="strict")
    amounts = {"rpm": 1, "tpm": 800}
    request = limiter.acquire("user-123", "gpt-4", amounts)
    prepared = await limiter.prepare(limiter.acquire("user-123", "gpt-4", amounts, no_cascade=True))
    cascading = await limiter.prepare(request)
    times: dict[str, list[float]] = {form: [] for form in FORMS}
    for n in range(ROUNDS):
        for form, statement in FORMS.items():
            misses: list[int] = []
            found = {"limiter": limiter, "prepared": prepared, "cascading": cascading, "misses": misses}
            timer = timeit.Timer(statement + "\nif not got: misses.append(1)", globals=found)
            while len(times[form]) <= n:
                # A limiter leases by what was used lately, so the first rounds run out of tokens. Such
                # a round is timed again.
                misses.clear()
                for _ in range(3):
                    await request
                await asyncio.sleep(0.002)
                seconds = timer.timeit(CALLS)
                if not misses:
                    times[form].append(seconds / CALLS * 1e6)
    empty = statistics.median(next(iter(times.values())))
    print(f"{'microseconds a call, medians of ' + str(ROUNDS) + ' rounds':<48}{'p50':>8}{'of empty':>10}")
    for form, rounds in times.items():
        median = statistics.median(rounds)
        print(f"{form:<48}{median:>8.3f}{median / empty:>9.1f}x")
    await limiter.close()


asyncio.run(main())
