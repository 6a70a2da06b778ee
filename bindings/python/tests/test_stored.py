"""Limits, entities, usage, budgets and prices."""

import time
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

import sluicegate
from sluicegate import Limit


def test_a_limit_is_its_text() -> None:
    assert str(Limit.per_minute("rpm", 100, burst=200)) == "rpm=100/min,burst=200"
    assert Limit.by_calendar("usd", "0.5", "month@15", tz="Europe/Berlin") == Limit(
        "usd=0.5/month@15,tz=Europe/Berlin"
    )
    assert str(Limit.by_calendar("usd", 1, "day", forgive_debt=True)) == "usd=1/day,debt=forgiven"
    assert Limit.every("x", 5, timedelta(seconds=90)) == Limit("x=5/90s")
    assert Limit.per_second("x", 1) != Limit.per_hour("x", 1)
    assert {Limit.quota("x", Decimal("2.5")), Limit("x=2.5/never")} == {Limit("x=2.5/never")}
    assert (Limit("rpm=1/min").name, repr(Limit("rpm=1/min"))) == ("rpm", 'Limit("rpm=1/min")')
    assert Limit.quota("x", Decimal("1E+3")) == Limit("x=1000/never")
    with pytest.raises(sluicegate.InvalidRequestError, match="whole milliseconds"):
        Limit.every("x", 5, timedelta(milliseconds=1, microseconds=1))
    for wrong in ["rpm", "rpm=0/min", "r pm=1/min"]:
        with pytest.raises(sluicegate.InvalidRequestError):
            Limit(wrong)


def test_stored_limits_and_parents_are_used(sluicegate_local: sluicegate.Local) -> None:
    limiter = sluicegate_local.limiter(on_unavailable="deny")
    limits = [Limit.per_minute("rpm", 3), Limit("usd=1/month")]
    assert limiter.set_limits([*limits, "tpm=9/min"], entity="child").sync() == [
        limits[0],
        Limit("tpm=9/min"),
        limits[1],
    ]
    assert limiter.delete_limits(["tpm"], entity="child").sync() == limits
    assert limiter.stored_limits(entity="child").sync() == limits
    assert limiter.stored_limits(entity="child", resource="other").sync() == []
    limiter.set_limits(["rpm=2/min"], entity="team").sync()
    nothing: object = limiter.put_entity("child", parent="team").sync()
    assert nothing is None
    record = limiter.entity("child").sync()
    assert record is not None
    assert (record.entity, record.parent, record.cascade) == ("child", "team", True)
    for _ in range(2):
        limiter.acquire("child", "r", {"rpm": 1}).sync()
    with pytest.raises(sluicegate.LimitExceededError) as refused:
        limiter.acquire("child", "r", {"rpm": 1}).sync()
    assert [status.entity for status in refused.value.limits if status.violated] == ["team"]
    limiter.delete_entity("child").sync()
    assert limiter.entity("child").sync() is None
    limiter.acquire("child", "r", {"rpm": 1}).sync()
    for wrong in ["child", "a#b"]:
        with pytest.raises(sluicegate.InvalidRequestError):
            limiter.put_entity("child", parent=wrong).sync()
    with pytest.raises(sluicegate.InvalidRequestError, match="DynamoDB"):
        sluicegate.memory().stored_limits().sync()


def test_a_table_is_created_once(sluicegate_local: sluicegate.Local) -> None:
    limiter = sluicegate.dynamodb(
        "another",
        endpoint_url=sluicegate_local.endpoint_url,
        region="us-east-1",
        limits=["rpm=5/never"],
        on_unavailable="deny",
    )
    with pytest.raises(sluicegate.SetupError, match="another does not exist"):
        limiter.acquire("u", "r", {"rpm": 1}).sync()
    for _ in range(2):
        limiter.create_table().sync()
        limiter.acquire("u", "r", {"rpm": 1}).sync()
    assert [status.available for status in limiter.peek("u", "r").sync()] == [3]
    with pytest.raises(sluicegate.InvalidRequestError, match="DynamoDB"):
        sluicegate.memory().create_table().sync()


def test_usage_and_budget_show_what_was_used(sluicegate_local: sluicegate.Local) -> None:
    limiter = sluicegate_local.limiter(limits=["rpm=100/min", "usd=10/month"])
    began = datetime.now(timezone.utc)
    permit = limiter.acquire("spends", "gpt-4", {"rpm": 1, "usd": "0.5"}).sync()
    permit.correct_to(usd="0.125000001").sync()
    days: list[sluicegate.UsageWindow] = []
    spent, until = Decimal(0), time.monotonic() + 30
    while spent != Decimal("0.125000001") and time.monotonic() < until:
        time.sleep(0.05)
        days = limiter.usage("spends", "gpt-4", kind="day", since=began - timedelta(days=1)).sync()
        spent = sum((day.consumed["usd"] for day in days), Decimal(0))
    (day,) = days
    assert (day.entity, day.resource) == ("spends", "gpt-4")
    assert day.consumed == {"rpm": 1, "usd": Decimal("0.125000001")}
    assert day.start <= began < day.end == day.start + timedelta(days=1)
    assert limiter.usage("spends", kind="day", since=began + timedelta(days=1)).sync() == []
    assert len(limiter.usage(resource="gpt-4", since=began - timedelta(hours=1)).sync()) >= 1
    (budget,) = limiter.budget("spends").sync()
    assert (budget.rule, budget.granted, budget.left) == (
        "usd=10/month",
        Decimal("0.125000001"),
        Decimal("9.874999999"),
    )
    assert budget.used == budget.granted
    assert budget.resets_at is not None
    assert budget.resets_at > began
    with pytest.raises(sluicegate.InvalidRequestError, match="entity"):
        limiter.usage(since=began)
    with pytest.raises(sluicegate.InvalidRequestError, match="fortnight"):
        limiter.usage("spends", kind="fortnight", since=began)
    with pytest.raises(sluicegate.InvalidRequestError, match="time zone"):
        limiter.usage("spends", since=datetime.now())
    berlin = (began - timedelta(days=1)).astimezone(ZoneInfo("Europe/Berlin"))
    assert len(limiter.usage("spends", "gpt-4", kind="day", since=berlin).sync()) == 1


def test_a_price_book_makes_amounts_of_usage() -> None:
    response = {
        "usage": {
            "prompt_tokens": 1200,
            "completion_tokens": 80,
            "prompt_tokens_details": {"cached_tokens": 1024},
        }
    }
    usage = sluicegate.Usage.of_response(response)
    assert usage == sluicegate.Usage(input=176, output=80, cached_input=1024)
    assert sluicegate.Usage.of_response(b"{}") is None
    book = sluicegate.PriceBook.from_litellm(
        '{"gpt-4o": {"input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05,'
        ' "cache_read_input_token_cost": 1.25e-06, "litellm_provider": "openai", "mode": "chat"}}'
    )
    assert book.models == ["gpt-4o"]
    assert usage is not None
    amounts = book.amounts("gpt-4o", usage)
    assert amounts == {"rpm": 1, "input": 1200, "output": 80, "usd": Decimal("0.00252")}
    limiter = sluicegate.memory(limits=[f"{name}=9999/never" for name in amounts])
    permit = limiter.acquire("u", "gpt-4o", amounts).sync()
    # A small `Decimal` has an exponent.
    permit.correct_to(usd=Decimal("4.5E-7")).sync()
    (left,) = [status.available for status in limiter.peek("u", "gpt-4o").sync() if status.limit == "usd"]
    assert left == 9_999 - Decimal("4.5E-7")
    with pytest.raises(sluicegate.UnknownPriceError, match="gpt-5"):
        book.amounts("gpt-5", usage)
    with pytest.raises(sluicegate.InvalidRequestError):
        sluicegate.PriceBook.from_json("[]")
    with pytest.raises(sluicegate.InvalidRequestError):
        sluicegate.Usage.of_response("no json")


def test_an_engine_keeps_its_file(tmp_path: object) -> None:
    data = f"{tmp_path}/limits.db"
    with sluicegate.local(data=data, windows="minute") as engine:
        with pytest.raises(RuntimeError, match="already"):
            engine.__enter__()
        engine.limiter(limits=["x=5/never"]).acquire("u", "r", {"x": 2}).sync()
    with pytest.raises(RuntimeError, match="with"):
        engine.limiter()
    began = datetime.now(timezone.utc) - timedelta(minutes=2)
    with sluicegate.local(data=data) as engine:
        limiter = engine.limiter()
        # Its end has counted what was written.
        windows = limiter.usage("u", "r", kind="minute", since=began).sync()
        assert [window.consumed for window in windows] == [{"x": 2}]
        assert [status.available for status in limiter.peek("u", "r").sync()] == [3]
    with pytest.raises(sluicegate.InvalidRequestError, match="fortnight"):
        sluicegate.local(windows="fortnight")
