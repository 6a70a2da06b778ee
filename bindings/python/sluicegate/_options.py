"""The keywords of a limiter and of its requests, for annotations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from . import Limit


class Settings(TypedDict, total=False):
    limits: Iterable[Limit | str]
    """The limits of requests that bring none, like ``rpm=100/min`` or ``usd=200/month``."""
    leasing: Literal["strict", "write_behind"] | None
    """Takes tokens ahead of need, to decide in memory. ``strict`` debits them first, and never exceeds a
    limit; ``write_behind`` debits them afterwards, and may exceed one by ``threshold`` per process."""
    threshold: int
    """For ``write_behind``: the tokens of a limit that are handed out before they are debited; 100."""
    on_unavailable: Literal["allow", "deny", "local"]
    """The decision while the store is unavailable: ``allow`` unless set, which counts nothing."""
    deadline: timedelta | None
    """The time in which the store must decide."""
    shadow: bool
    """Only watch: grant what would be refused, and say so by ``Permit.shadowed``."""


class Options(TypedDict, total=False):
    limits: Sequence[Limit | str]
    """The limits of the bucket, which win over stored ones."""
    parent: str | None
    """Takes from the bucket of this parent too."""
    no_cascade: bool
    """Takes from no parent, whatever the entity's record says."""
    parent_limits: Sequence[Limit | str]
    """The limits of the parent, if they differ."""
    wait: timedelta | None
    """Waits for tokens this long, in order of arrival."""
    deadline: timedelta | None
    """The time in which the store must decide this request."""
