"""The HTTP response to a request that was not granted. It names limits, never entities or causes."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import sluicegate
from sluicegate import LimitStatus

log = logging.getLogger("sluicegate")

# Other writers finish within milliseconds.
CONTENDED_RETRY_S = 1
# When the store becomes available again, clients should not all return at once.
UNAVAILABLE_RETRY_S = 5


@dataclass
class Refusal:
    status: int
    detail: str
    retry_after_s: int | None = None
    """Whole seconds, rounded up."""
    limits: Sequence[LimitStatus] = ()

    @property
    def violated(self) -> list[LimitStatus]:
        return [status for status in self.limits if status.violated]

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


def refusal(error: Exception) -> Refusal:
    """The response to an acquire that failed."""
    match error:
        case sluicegate.LimitExceededError():
            if error.retry_after is None:
                return Refusal(429, "the quota is used up and does not refill", limits=error.limits)
            seconds = math.ceil(error.retry_after.total_seconds())
            return Refusal(429, "wait as long as Retry-After says", seconds, error.limits)
        case sluicegate.NeverAdmissibleError():
            detail = "the request asks for more than the limit ever grants at once: ask for less"
            return Refusal(400, detail, limits=error.limits)
        case ValueError() if not isinstance(error, sluicegate.InvalidLimitError):
            log.warning("refused: %s", error)
            detail = (
                "a name or an amount in the request is invalid: check the entity, the resource and the amounts"
            )
            return Refusal(400, detail)
        case sluicegate.ContendedError() | sluicegate.UnavailableError():
            log.warning("refused: %s", error)
            contended = isinstance(error, sluicegate.ContendedError)
            seconds = CONTENDED_RETRY_S if contended else UNAVAILABLE_RETRY_S
            detail = "the rate limit cannot be checked at the moment, and tokens may have been taken: ask again later"
            return Refusal(503, detail, seconds)
        case _:
            log.error("refused: %s", error)
            return Refusal(500, "the rate limit cannot be checked")
