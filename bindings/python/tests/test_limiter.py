"""The package as its users see it."""

import ast
import asyncio
import copy
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

import sluicegate


def left(limiter: sluicegate.Limiter, entity: str, limits: list[str]) -> list[Decimal]:
    return [status.available for status in limiter.peek(entity, "r", limits=limits).sync()]


def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "README.md").read_text()
    blocks = re.findall(r"```(?:python|text)\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 5
    for program, printed in zip(blocks[0:4:2], blocks[1:4:2]):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (printed, "")
    (tmp_path / "test_page.py").write_text(blocks[4])
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    assert "1 passed" in subprocess.run(pytest_, capture_output=True, text=True).stdout


def test_help_says_what_an_editor_shows() -> None:
    def words(doc: str | None) -> list[str]:
        return (doc or "").replace("`", "").split()

    def compare(place: object, nodes: list[ast.stmt]) -> int:
        compared = 0
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                item = getattr(place, node.name)
                shown = words(ast.get_docstring(node))
                # The help of an exception goes on with its attributes, which have none.
                assert words(item.__doc__)[: len(shown)] == shown, node.name
                compared += 1 if shown else 0
                if isinstance(node, ast.ClassDef):
                    compared += compare(item, node.body)
        return compared

    stub = Path(sluicegate.__file__).with_suffix(".pyi").read_text()
    assert compare(sluicegate, ast.parse(stub).body) > 60


def test_a_negative_total_is_refused() -> None:
    limiter = sluicegate.memory(limits=["tpm=100/never"])
    permit = limiter.acquire("u", "r", {"tpm": 40}).sync()
    with pytest.raises(sluicegate.InvalidRequestError, match="tpm is negative"):
        permit.correct_to(tpm=-1).sync()
    assert [status.available for status in permit.remaining] == [60]


def test_a_refusal_carries_the_time_and_the_limits() -> None:
    limiter = sluicegate.memory(limits=["rpm=60/min", "tpm=100/never"])
    permit = limiter.acquire("u", "r", {"rpm": 60, "tpm": 40}).sync()
    rpm, tpm = permit.remaining
    assert (rpm.limit, tpm.limit, tpm.available) == ("rpm", "tpm", Decimal(60))
    assert rpm.available < 1
    with pytest.raises(sluicegate.LimitExceededError) as refused:
        limiter.acquire("u", "r", {"rpm": 1, "tpm": 1}).sync()
    assert refused.value.retry_after is not None
    assert timedelta(milliseconds=500) < refused.value.retry_after <= timedelta(seconds=1)
    assert [(status.rule, status.violated) for status in refused.value.limits] == [
        ("rpm=60/min", True),
        ("tpm=100/never", False),
    ]
    with pytest.raises(sluicegate.LimitExceededError) as never:
        limiter.acquire("u", "r", {"tpm": 61}).sync()
    assert never.value.retry_after is None
    with pytest.raises(sluicegate.NeverAdmissibleError):
        limiter.acquire("u", "r", {"tpm": 101}).sync()


def test_refusals_and_values_can_be_pickled() -> None:
    """A pool of processes or a queue of jobs pickles what its workers return and raise."""
    limiter = sluicegate.memory(limits=["rpm=1/min"])
    limiter.acquire("u", "r", {"rpm": 1}).sync()
    with pytest.raises(sluicegate.LimitExceededError) as refused:
        limiter.acquire("u", "r", {"rpm": 1}).sync()
    error = pickle.loads(pickle.dumps(refused.value))
    assert (type(error), str(error)) == (sluicegate.LimitExceededError, str(refused.value))
    assert error.retry_after == refused.value.retry_after
    assert [repr(status) for status in error.limits] == [repr(status) for status in refused.value.limits]
    assert error.limits[0].violated
    usage = sluicegate.Usage(input=1, output=2, cached_input=3, cache_write=4)
    for value in (usage, sluicegate.Limit("usd=5/month,tz=Europe/Berlin")):
        assert copy.copy(value) == pickle.loads(pickle.dumps(value)) == value
        assert hash(copy.copy(value)) == hash(value)


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
        permit.correct_to(usd="0.000000001").sync()
    assert left(limiter, "u", limits) == [Decimal("0.599999999")]
    permit.release().sync()
    permit.release().sync()
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
            limiter.acquire("u", "r", consume).sync()
    with pytest.raises(sluicegate.InvalidRequestError, match="rpm=10"):
        sluicegate.memory(limits=["rpm=10"])
    with pytest.raises(sluicegate.InvalidRequestError, match="strict"):
        sluicegate.memory(leasing="lenient")  # type: ignore[arg-type]
    with pytest.raises(sluicegate.InvalidRequestError, match="both"):
        limiter.acquire("u", "r", {"rpm": 1}, parent="team", no_cascade=True)
    with pytest.raises(sluicegate.InvalidRequestError, match="wait is -1 day.*not negative"):
        limiter.acquire("u", "r", {"rpm": 1}, wait=timedelta(seconds=-1))
    for make in (lambda text: sluicegate.memory(limits=text), lambda text: limiter.peek("u", "r", limits=text)):
        with pytest.raises(sluicegate.InvalidRequestError, match='give \\["rpm=10/s"'):
            make("rpm=10/s")
    with pytest.raises(TypeError, match="parents"):
        limiter.acquire("u", "r", {"rpm": 1}, parents="team")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="limit'"):
        sluicegate.memory(limit=[])  # type: ignore[call-arg]
    of_request: list[tuple[str, object]] = [("wait", "soon"), ("deadline", 5), ("parent", 3), ("no_cascade", "yes")]
    for name, value in of_request:
        with pytest.raises(TypeError, match=f"argument '{name}': "):
            limiter.acquire("u", "r", {"rpm": 1}, **{name: value})  # type: ignore[arg-type]
    of_limiter: list[tuple[str, object]] = [("shadow", 1), ("threshold", "many"), ("leasing", True)]
    for name, value in [*of_limiter, ("on_unavailable", None)]:
        with pytest.raises(TypeError, match=f"argument '{name}': "):
            sluicegate.memory(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="argument 'parent_limits': limits are a list, not <class 'int'>"):
        limiter.acquire("u", "r", {"rpm": 1}, parent_limits=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="argument 'limits': a limit is a Limit or a text, not <class 'int'>"):
        sluicegate.memory(limits=[5])  # type: ignore[list-item]
    sluicegate.redis("rediss://127.0.0.1:6379")
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
    leased = sluicegate.memory(limits=["rpm=100/min"], leasing="strict")
    prepared = leased.prepare(leased.acquire("u", "r", {"rpm": 1})).sync()
    prepared.acquire().sync()
    child = os.fork()
    if child == 0:
        calls: list[Callable[[], object]] = [
            lambda: limiter.acquire("u", "r", {"rpm": 1}).sync(),
            # Held tokens are the parent's.
            prepared.try_acquire,
            lambda: leased.try_acquire("u", "r", {"rpm": 1}),
        ]
        for call in calls:
            try:
                call()
                os._exit(1)
            except RuntimeError as error:
                if "make a limiter in each process" not in str(error):
                    os._exit(2)
        # One that is made here works, on an event loop too.
        own = sluicegate.memory(limits=["rpm=2/never"])
        own.acquire("u", "r", {"rpm": 1}).sync()

        async def take() -> None:
            await own.acquire("u", "r", {"rpm": 1})

        asyncio.run(take())
        os._exit(0 if left(own, "u", []) == [0] else 3)
    assert os.waitpid(child, 0)[1] == 0


def test_a_child_leaves_the_engine_of_its_parent_running() -> None:
    with sluicegate.local() as engine:
        child = os.fork()
        if child == 0:
            try:
                engine.__exit__(None, None, None)
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        engine.limiter(limits=["rpm=1/never"]).acquire("u", "r", {"rpm": 1}).sync()


def test_held_tokens_are_taken_without_await(sluicegate_local: sluicegate.Local) -> None:
    limiter = sluicegate_local.limiter(leasing="strict", on_unavailable="deny", limits=["tpm=9000/never"])

    async def main() -> int:
        await limiter.acquire("tried", "r", {"tpm": 1})
        taken = 1
        while taken < 1_000:
            permit = limiter.try_acquire("tried", "r", {"tpm": 1})
            if permit is None:
                permit = await limiter.acquire("tried", "r", {"tpm": 1})
            taken += 1
        assert limiter.try_acquire("tried", "r", {"tpm": 9_000}) is None
        permit = limiter.try_acquire("tried", "r", {"tpm": 1})
        assert permit is not None
        await permit.release()
        await limiter.close()
        return taken

    taken = asyncio.run(main())
    assert left(limiter, "tried", []) == [9_000 - taken]
    plain = sluicegate.memory(limits=["rpm=1/min"])
    with pytest.raises(sluicegate.InvalidRequestError, match="leas"):
        plain.try_acquire("u", "r", {"rpm": 1})


def test_a_prepared_request_is_decided_in_memory(sluicegate_local: sluicegate.Local) -> None:
    limiter = sluicegate_local.limiter(leasing="strict", on_unavailable="deny")

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
        plain.prepare(plain.acquire("u", "r", {"rpm": 1})).sync()


CHANGES_THE_ENVIRONMENT = """
import asyncio, os, threading, time
import sluicegate

with sluicegate.local() as engine:
    limiter = engine.limiter(limits=["rpm=1000000/min"])

    async def work() -> None:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            await asyncio.gather(*(limiter.acquire(f"u{n}", "r", {"rpm": 1}) for n in range(8)))

    limiter.acquire("u", "r", {"rpm": 1}).sync()  # reads the credentials
    worker = threading.Thread(target=asyncio.run, args=[work()])
    worker.start()
    count = 0
    while worker.is_alive():
        # Each new variable moves the list of all of them.
        os.environ[f"CHANGED_{count}"] = "x"
        count += 1
        if count % 500 == 0:
            for n in range(count - 500, count):
                del os.environ[f"CHANGED_{n}"]
print("done")
"""


def test_a_program_may_change_its_environment() -> None:
    """The C library's ``getenv`` in another thread would crash the process."""
    done = subprocess.run([sys.executable, "-c", CHANGES_THE_ENVIRONMENT], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
