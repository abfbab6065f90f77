"""Which errors are worth another try, and when."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ErrorClass(StrEnum):
    INFRASTRUCTURE = "infrastructure"
    """Something between us and them: connections, gateways, unknown errors."""
    TRANSIENT = "transient"
    """They ask us to come back: overload, rate limits, timeouts."""
    PERMANENT = "permanent"
    """It will be refused again: wrong request, no access, not found."""
    INVALID_OUTPUT = "invalid_output"
    """The model answered with something that nobody can use."""


RETRIED = frozenset({ErrorClass.INFRASTRUCTURE, ErrorClass.TRANSIENT})
_TRANSIENT = frozenset({408, 429, 503, 529})
LONGEST_WISH_SECONDS = 3600.0
"""Whatever a provider wishes: after so long it is asked again."""


def classify(status: int | None) -> ErrorClass:
    """By the HTTP status of whoever failed; None where there was no answer at all."""
    if status is None or status >= 500:
        return ErrorClass.TRANSIENT if status in _TRANSIENT else ErrorClass.INFRASTRUCTURE
    if status in _TRANSIENT:
        return ErrorClass.TRANSIENT
    return ErrorClass.PERMANENT if 400 <= status < 500 else ErrorClass.INFRASTRUCTURE


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    base_seconds: float = 1
    cap_seconds: float = 300

    def delay(self, retry_count: int, chance: float) -> float:
        """Full jitter: anywhere between now and min(cap, base · 2ⁿ); ``chance`` is in [0, 1)."""
        # An exponent of 64 is past any cap; without the limit a large count would overflow.
        return chance * min(self.cap_seconds, self.base_seconds * 2.0 ** min(retry_count, 64))

    def delay_after(self, wished: float | None, retry_count: int, chance: float) -> float:
        """Never before the time that the other side wished, and not all who were told the same at once."""
        least = min(max(wished or 0.0, 0.0), LONGEST_WISH_SECONDS)
        return max(least * (1 + chance / 10), self.delay(retry_count, chance))
