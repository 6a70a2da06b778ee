"""Calls: awaited, made without an event loop, forgotten, and cancelled on the way."""

import asyncio
import gc
import logging
import os
import signal
import time
import warnings
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from servers import Cable

import sluicegate


def taken(limiter: sluicegate.Limiter) -> Decimal:
    (status,) = limiter.peek("u", "r").sync()
    return 100 - status.available


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "forgotten",
    [
        lambda limiter: limiter.acquire("u", "r", {"rpm": 1}),
        lambda limiter: limiter.peek("u", "r"),
        lambda limiter: limiter.acquire("u", "r", {"rpm": 1}).sync().release(),
    ],
)
def test_a_call_that_is_never_made_warns(forgotten: Callable[[sluicegate.Limiter], Any]) -> None:
    limiter = sluicegate.memory(limits=["rpm=100/never"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        forgotten(limiter)
        gc.collect()
    assert len(caught) == 1
    assert "was never made: await it" in str(caught[0].message)


def test_a_forgotten_call_hides_no_exception() -> None:
    limiter = sluicegate.memory(limits=["rpm=100/never"])
    nothing: dict[str, int] = {}
    with pytest.raises(KeyError, match="missing"):
        print(limiter.acquire("u", "r", {"rpm": 1}), nothing["missing"])


def test_a_call_is_made_once() -> None:
    limiter = sluicegate.memory(limits=["rpm=100/never"])
    call = limiter.peek("u", "r")
    assert len(call.sync()) == 1
    with pytest.raises(RuntimeError, match="already"):
        call.sync()
    with pytest.raises(RuntimeError, match="no running event loop"):
        limiter.acquire("u", "r", {"rpm": 1}).__await__()
    again = limiter.peek("u", "r")
    with pytest.raises(RuntimeError, match="no running event loop"):
        again.__await__()
    assert len(again.sync()) == 1
    assert taken(limiter) == 0


def test_a_permit_that_does_not_arrive_is_given_back() -> None:
    """A task is cancelled at every step of the loop between the request and its result."""
    limiter = sluicegate.memory(limits=["rpm=100/never"])
    arrived = 0

    async def acquire() -> None:
        nonlocal arrived
        await limiter.acquire("u", "r", {"rpm": 1})
        arrived += 1

    async def main() -> None:
        for steps in range(60):
            task = asyncio.create_task(acquire())
            for step in range(steps % 20):
                await asyncio.sleep(0.001 if step == 3 and steps < 20 else 0)
            task.cancel()
            await asyncio.wait([task])
        await asyncio.sleep(0.2)

    asyncio.run(main())
    assert 0 < arrived < 60
    assert taken(limiter) == arrived


def test_a_result_is_dropped_if_its_task_is_cancelled_before_it_wakes() -> None:
    limiter = sluicegate.memory(limits=["rpm=100/never"])

    async def main() -> None:
        waits = limiter.acquire("u", "r", {"rpm": 1}).__await__()
        future = next(waits)
        future._asyncio_future_blocking = False
        await future
        # The call has ended, and its permit is on its way to nobody.
        del waits
        await asyncio.sleep(0.2)

    asyncio.run(main())
    assert taken(limiter) == 0


def test_the_exception_of_a_body_wins_and_a_second_cancellation_keeps_nothing() -> None:
    async def body(limiter: sluicegate.Limiter) -> None:
        async with limiter.acquire("u", "r", {"rpm": 10}):
            await asyncio.sleep(99)

    async def twice(limiter: sluicegate.Limiter) -> None:
        task = asyncio.create_task(body(limiter))
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await asyncio.sleep(0.3)

    with sluicegate.local() as engine:
        limiter = engine.limiter(limits=["rpm=100/never"], on_unavailable="deny")
        asyncio.run(twice(limiter))
        assert taken(limiter) == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failed_release_does_not_replace_the_exception_of_the_body() -> None:
    engine = sluicegate.local()
    engine.__enter__()
    limiter = engine.limiter(limits=["rpm=100/never"], on_unavailable="deny")
    with pytest.raises(KeyError), limiter.acquire("u", "r", {"rpm": 1}):
        engine.__exit__(None, None, None)
        raise KeyError("the model failed")


def test_an_outage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "sluicegate")
    with sluicegate.local() as engine:
        limiter = engine.limiter(limits=["rpm=100/never"])
        limiter.acquire("u", "r", {"rpm": 1}).sync()
    for _ in range(10):
        limiter.acquire("u", "r", {"rpm": 1}).sync()
    deadline = time.monotonic() + 10
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    [outage] = caplog.record_tuples
    assert outage[:2] == ("sluicegate", logging.WARNING)
    assert outage[2].startswith("the store is unavailable") and "policy=Allow" in outage[2]


def test_a_request_is_entered_once_at_a_time() -> None:
    limiter = sluicegate.memory(limits=["rpm=100/never"])
    request = limiter.acquire("u", "r", {"rpm": 10})

    async def enter() -> None:
        async with request:
            await asyncio.sleep(0.05)

    async def main() -> None:
        first, second = await asyncio.gather(enter(), enter(), return_exceptions=True)
        assert first is None
        assert isinstance(second, RuntimeError)

    asyncio.run(main())
    assert taken(limiter) == 10


def test_a_signal_loses_no_permit() -> None:
    class Stop(Exception):
        pass

    def stop(signal_: int, frame: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    kept = 0
    try:
        with sluicegate.local() as engine:
            limiter = engine.limiter(limits=["rpm=100/never"], on_unavailable="deny")
            limiter.peek("u", "r").sync()
            for n in range(20):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0004 * (1 + n % 5))
                    limiter.acquire("u", "r", {"rpm": 1}).sync()
                    kept += 1
                    time.sleep(0.05)
                except Stop:
                    pass
            signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(0.3)
            limiter.acquire("u", "r", {"rpm": 1}).sync()
            # A signal after the last look for one may lose a permit, but not all of them.
            assert taken(limiter) <= kept + 3
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_signal_while_tasks_wake_lets_the_others_wake() -> None:
    class Interrupted(asyncio.SelectorEventLoop):
        armed = False

        def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
            # As the handler of a signal would that comes here.
            if self.armed and "wakeup" in repr(callback).lower():
                self.armed = False
                raise TimeoutError
            return super().call_soon(callback, *args, context=context)

    async def main() -> int:
        calls = [limiter.acquire("u", "r", {"rpm": 1}) for _ in range(50)]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0)
        # All of them are done when the event loop looks.
        time.sleep(0.2)
        loop.armed = True
        done, pending = await asyncio.wait(tasks, timeout=2)
        for task in pending:
            task.cancel()
        return len(pending)

    limiter = sluicegate.memory(limits=["rpm=100/never"])
    loop = Interrupted()
    loop.set_exception_handler(lambda _, context: None)
    try:
        # The future of the one whose waking raised is done; nobody tells its task.
        assert loop.run_until_complete(main()) <= 1
    finally:
        loop.close()


def test_a_signal_does_not_stop_a_correction(sluicegate_local: sluicegate.Local) -> None:
    cable = Cable(sluicegate_local.endpoint_url)
    limits, deadline = ["rpm=100/never"], timedelta(seconds=20)
    limiter = sluicegate.dynamodb(
        sluicegate_local.table, endpoint_url=cable.url, limits=limits, deadline=deadline
    )
    permit = limiter.acquire("signal", "r", {"rpm": 10}).sync()

    def stop(signal_: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    cable.run(cable.set(whole=False))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(TimeoutError):
            permit.correct_to(rpm=4).sync()
    finally:
        signal.signal(signal.SIGALRM, before)
    cable.run(cable.set(whole=True))
    end = time.monotonic() + 20
    while sluicegate_local.limiter().peek("signal", "r", limits=limits).sync()[0].available != 96:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_correction_that_is_repeated_meanwhile_is_made_once(sluicegate_local: sluicegate.Local) -> None:
    cable = Cable(sluicegate_local.endpoint_url)
    limits = ["rpm=10000/never"]
    limiter = sluicegate.dynamodb(
        sluicegate_local.table, endpoint_url=cable.url, limits=limits, deadline=timedelta(seconds=20)
    )

    async def main() -> None:
        permit = await limiter.acquire("repeated", "r", {"rpm": 100})
        cable.delay = 0.4
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(permit.correct_to(rpm=3000), 0.1)
        await permit.correct_to(rpm=3000)

    asyncio.run(main())
    left = sluicegate_local.limiter().peek("repeated", "r", limits=limits).sync()
    assert left[0].available == 7000


def test_an_endpoint_and_a_region_are_checked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for endpoint in ("127.0.0.1:8000", "nonsense", ""):
        with pytest.raises(sluicegate.InvalidRequestError, match="give a URL like http://127.0.0.1:8000"):
            sluicegate.dynamodb("t", endpoint_url=endpoint)
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(sluicegate.InvalidRequestError, match="no region is set: give region=.*AWS_REGION"):
        sluicegate.dynamodb("t")
    limiter = sluicegate.dynamodb("t", endpoint_url="http://127.0.0.1:1", on_unavailable="deny")
    with pytest.raises(sluicegate.UnavailableError):
        limiter.acquire("u", "r", {"rpm": 1}, limits=["rpm=1/min"]).sync()


def test_a_wait_beyond_every_timedelta_is_cut() -> None:
    limiter = sluicegate.memory(limits=["rpm=1/365d,burst=10000000"])
    limiter.acquire("u", "r", {"rpm": 10_000_000}).sync()
    with pytest.raises(sluicegate.LimitExceededError) as refused:
        limiter.acquire("u", "r", {"rpm": 10_000_000}).sync()
    assert refused.value.retry_after is not None and refused.value.retry_after.days == 999_999_999


@pytest.mark.parametrize("amount", ["1e999999999", "-1e-999999999", "9" * 1_000])
def test_a_decimal_that_is_no_amount_is_refused_at_once(amount: str) -> None:
    limiter = sluicegate.memory(limits=["rpm=100/never"])
    with pytest.raises(sluicegate.InvalidRequestError, match="give a number") as refused:
        limiter.acquire("u", "r", {"rpm": Decimal(amount)})
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("amount", [0.5, 2.5e-06, 0.1 + 0.2, float("nan")])
def test_a_float_is_no_amount_whatever_its_value(amount: float) -> None:
    limiter = sluicegate.memory(limits=["usd=100/never"])
    with pytest.raises(TypeError, match=r"round\(Decimal\(cost\), 9\)"):
        limiter.acquire("u", "r", {"usd": amount})  # type: ignore[dict-item]
    permit = limiter.acquire("u", "r", {"usd": 1}).sync()
    with pytest.raises(TypeError, match='the amount of "usd" is a float'):
        permit.correct_to(usd=amount)  # type: ignore[arg-type]
    permit.correct_to(usd=round(Decimal(0.1 + 0.2), 9)).sync()
    assert limiter.peek("u", "r").sync()[0].available == Decimal("99.7")


def test_zeros_at_the_end_of_a_decimal_change_nothing() -> None:
    limiter = sluicegate.memory(limits=["rpm=100/never", "tpm=100/never"])
    consume = {"rpm": Decimal("1.000000000000"), "tpm": Decimal("0E-50")}
    limiter.acquire("u", "r", consume).sync()
    assert [status.available for status in limiter.peek("u", "r").sync()] == [99, 100]


def test_times_that_are_none_are_refused() -> None:
    limiter = sluicegate.memory(limits=["rpm=100/never"])
    for given in (date(2026, 1, 28), datetime(2026, 1, 28, tzinfo=timezone.utc).timetz(), 0):
        since: Any = given
        with pytest.raises(TypeError, match="is no datetime"):
            limiter.usage("u", since=since)
    with pytest.raises(sluicegate.InvalidRequestError, match="timeout is .* not negative"):
        limiter.close(timedelta(seconds=-1))
    with pytest.raises(sluicegate.InvalidRequestError, match="out of range"):
        limiter.usage("u", since=datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))))


def test_exceptions_of_the_package_have_their_attributes() -> None:
    error = sluicegate.LimitExceededError("made by a test")
    assert (error.retry_after, list(error.limits)) == (None, [])


def test_a_limit_that_is_only_short_is_not_why_a_request_never_fits() -> None:
    limiter = sluicegate.memory(limits=["rpm=1/never", "tpm=10/never"])
    limiter.acquire("u", "r", {"rpm": 1}).sync()
    with pytest.raises(sluicegate.NeverAdmissibleError) as raised:
        limiter.acquire("u", "r", {"rpm": 1, "tpm": 20}).sync()
    assert [(limit.limit, limit.violated) for limit in raised.value.limits] == [("rpm", False), ("tpm", True)]


def test_many_loops_leave_nothing_behind() -> None:
    limiter = sluicegate.memory(limits=["rpm=100/never"])

    async def cancelled() -> None:
        await limiter.acquire("u", "r", {"rpm": 100})
        waiting = limiter.acquire("u", "r", {"rpm": 1}, wait=timedelta(seconds=60))
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.gather(*(limiter.peek("u", "r") for _ in range(10)))

    async def release() -> None:
        await limiter.acquire("v", "r", {"rpm": 1})

    asyncio.run(release())
    gc.collect()
    before = sum(isinstance(kept, asyncio.BaseEventLoop) for kept in gc.get_objects())
    for n in range(20):
        limiter = sluicegate.memory(limits=["rpm=100/never"])
        asyncio.run(cancelled())
    gc.collect()
    after = sum(isinstance(kept, asyncio.BaseEventLoop) for kept in gc.get_objects())
    assert after <= before + 1


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_loop_closed_while_a_call_waits_leaves_no_sockets() -> None:
    limiter = sluicegate.memory(limits=["rpm=1/never"])
    limiter.acquire("u", "r", {"rpm": 1}).sync()

    async def begin() -> None:
        waiting = limiter.acquire("u", "r", {"rpm": 1}, wait=timedelta(seconds=60))
        asyncio.ensure_future(waiting)
        await asyncio.sleep(0.01)

    def descriptors_after_a_loop() -> int:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        loop.close()
        gc.collect()
        return len(os.listdir("/dev/fd"))

    first = descriptors_after_a_loop()
    # The newest loop keeps its sockets until another one asks.
    assert max(descriptors_after_a_loop() for _ in range(20)) <= first + 4
