"""Every error that Cortex Plane raises on purpose, as one tree.

    CortexError
    ├── InvalidInput            the request itself is wrong: change it
    │   ├── TooLarge            it is too big: make it smaller
    │   └── NotJson             a guarded function was given what cannot be shown
    ├── Unauthenticated         no valid key
    ├── Forbidden               a valid key that may not do this
    │   └── Denied              a guarded call that a policy or a person said no to
    ├── NotFound                no such thing, or it belongs to another org
    ├── Conflict                the state does not allow it: look again, then decide
    │   ├── AlreadyExists       a unique name is taken
    │   ├── ApprovalPending     a guarded call that nobody has decided yet
    │   ├── CallFailed          a guarded call that failed before, with this key
    │   ├── InUse               something still refers to it
    │   └── Stale               it changed since the caller looked
    ├── CheckpointCorrupt       a job's state is not what was written: it fails, and is never repaired
    ├── ModelError              the model gave no answer
    ├── ToolError               a tool failed, and nothing happened
    ├── UncertainOutcome        a tool cannot tell whether it happened
    │   ├── InDoubt             nobody knows of an earlier attempt of a guarded call
    │   ├── TimedOut            a guarded function did not return in its time
    │   └── SessionOver         an MCP server does not know its session any more
    ├── InvalidArguments        the model called a tool with arguments that it does not take
    ├── StepFailed              the function of a code agent's step raised
    │   └── StepNotDone         and nothing of what it was to do happened
    ├── ToolFailed              a tool that a code agent called failed
    ├── ToolDenied              a policy or a person said no to it
    │   └── GateClosed          a gate asks first: answer it, and call again
    ├── WaitTimeout             nobody sent the signal that a code agent waited for
    ├── ContextMisused          a code agent does what cannot be recorded
    ├── TryAgain                a message was not delivered, or nobody knows: it is tried again
    ├── Undeliverable           no later try would deliver it
    ├── MalformedEvent          a signed request of a vendor is not what the vendor sends
    ├── TooMany                 the caller has as many open as it may: close some, or wait
    ├── Unavailable             the database cannot be reached: try again
    └── SetupError              this machine or server needs attention before anything can run
        ├── InvalidApp          an app or a tool is declared in a way that cannot work
        └── MissingExtra        a package is not installed that an extra brings

Errors of checkpoints, models, tools, guarded calls and messages are defined beside what they are about. Each error has a stable ``code``
for programs, a ``message`` for people and a ``hint`` that says what to do next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar


class CortexError(Exception):
    """The root: ``except CortexError`` catches whatever the plane raises on purpose."""

    code: str = "error"
    http_status: ClassVar[int] = 500
    """What an HTTP API answers with it."""
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.hint = self.default_hint if hint is None else hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class InvalidInput(CortexError):
    code = "invalid_request"
    http_status = 422
    default_hint = "Correct the named fields and send the request again."


class TooLarge(InvalidInput):
    code = "too_large"
    http_status = 413
    default_hint = "Send less, or store the data elsewhere and send a reference."


class Unauthenticated(CortexError):
    code = "unauthenticated"
    http_status = 401
    default_hint = "Send a valid key as `Authorization: Bearer cortex_key_…`."


class Forbidden(CortexError):
    code = "forbidden"
    http_status = 403
    default_hint = "Ask an admin of your org for a role that may do this."


class NotFound(CortexError):
    code = "not_found"
    http_status = 404
    default_hint = "Check the id; it must belong to the org of your key."


class Conflict(CortexError):
    code = "conflict"
    http_status = 409
    default_hint = "Read the current state, then decide again."


class AlreadyExists(Conflict):
    code = "already_exists"
    default_hint = "Choose another name or slug, or use the one that exists."


class InUse(Conflict):
    code = "in_use"
    default_hint = "Remove what uses it first, or archive it instead."


class Stale(Conflict):
    code = "stale"
    http_status = 412
    default_hint = "Read it again and repeat the change with the new ETag in `If-Match`."


class Unavailable(CortexError):
    code = "unavailable"
    http_status = 503
    default_hint = "Try again in a moment; `cortex doctor` tells what is wrong."


class TooMany(CortexError):
    code = "too_many"
    http_status = 429
    default_hint = "Close some of them, or wait until others end."


class StepFailed(CortexError):
    """The function of a step raised an exception, which the message names."""

    code = "step_failed"
    http_status = 424
    default_hint = "Catch StepFailed to go another way; otherwise the job is tried again."


class StepNotDone(StepFailed):
    """A step that is settled like a call did not happen: that is recorded, and it does not run again."""

    code = "step_not_done"
    default_hint = "Catch StepFailed to go another way; otherwise the job fails."


class ToolFailed(CortexError):
    """A tool that a code agent called failed, or does not take such a call."""

    code = "tool_failed"
    http_status = 424
    default_hint = "Catch ToolFailed to go another way; otherwise the job fails."


class ToolDenied(CortexError):
    """A policy or a person said no to a call."""

    code = "tool_denied"
    http_status = 403
    default_hint = "Do not send the same call again: go another way."

    @property
    def answer(self) -> Any:
        """What a person answered in the place of the call; None where nobody did."""
        return self.details.get("answer")


class GateClosed(ToolDenied):
    """A gate asks before it lets a call through. Answer it, and the same call again goes on."""

    code = "gate_closed"
    http_status = 409
    default_hint = "Answer its questions, then make the same call again."

    @property
    def gate(self) -> str:
        """The id of the first gate that asks."""
        return self.questions[0]["gate"] if self.questions else ""

    @property
    def questions(self) -> list[dict[str, Any]]:
        """Each gate that asks, as `asked_of` in `gates/rules/prompts.py` shows it."""
        return list(self.details.get("questions") or ())


class WaitTimeout(CortexError):
    """Nobody sent the signal in time."""

    code = "wait_timeout"
    http_status = 424
    default_hint = "Catch WaitTimeout to go on without it; otherwise the job fails."


class ContextMisused(CortexError):
    """The context of a code agent was used in a way that cannot be recorded."""

    code = "context_misused"
    http_status = 422
    default_hint = "Correct the agent's code, then `cortex job resubmit` it."


class SetupError(CortexError):
    code = "setup"
    default_hint = "Run `cortex doctor`."


class ErrorClass(StrEnum):
    INFRASTRUCTURE = "infrastructure"
    """Something between us and them: connections, gateways, unknown errors."""
    TRANSIENT = "transient"
    """They ask us to come back: overload, rate limits, timeouts."""
    PERMANENT = "permanent"
    """It will be refused again: wrong request, no access, not found."""


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

    def delay_after(self, wish: float | None, retry_count: int, chance: float) -> float:
        """Never before the time that the other side wished, and not all who were told the same at once."""
        least = min(max(wish or 0.0, 0.0), LONGEST_WISH_SECONDS)
        return max(least * (1 + chance / 10), self.delay(retry_count, chance))


class MissingExtra(SetupError, ImportError):
    """A package is not installed that an extra brings."""

    code = "missing_extra"
    default_hint = "Run `pip install 'cortex-plane[all]'`."


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around imports of what the extra ``name`` brings: where it is missing, the error says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "cortex_plane"):
            raise
        raise MissingExtra(
            f"The package {package} is not installed: run `pip install 'cortex-plane[{name}]'`.", hint=""
        ) from error
