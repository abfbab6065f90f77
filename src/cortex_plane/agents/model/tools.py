"""Tools that workers publish, and the confirmations of tools from MCP servers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, TypeGuard
from uuid import UUID

from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass as draft
from pydantic_core import PydanticCustomError

from cortex_plane.kernel.errors import CortexError, SetupError
from cortex_plane.kernel.fields import DRAFT, Note, Risk, Slug

MAX_NAME = 64
MIN_TIMEOUT, MAX_TIMEOUT = 0.05, 86_400.0
"""Seconds that a call may take."""
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")


class OnUncertain(StrEnum):
    """How a call is settled that was sent and whose outcome nobody knows."""

    RETRY_WITH_KEY = "retry_with_key"
    """Call again: the tool passes `ctx.idempotency_key` on, and the outside world does it once."""
    PROBE = "probe"
    """Ask the tool's probe whether it happened."""
    ASK_HUMAN = "ask_human"
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolVersion:
    """What was declared about a tool at one time. The digest names it: approvals are given to exactly this."""

    app: str
    name: str
    digest: str
    """SHA-256 in hex."""
    description: str
    parameters: dict[str, Any]
    """JSON Schema of its arguments."""
    read_only: bool
    """Whether the tool changes nothing."""
    risk: Risk
    timeout_seconds: float
    """How long a call of it may take."""
    on_uncertain: OnUncertain | None
    """Null for read-only tools: they leave nothing uncertain and are simply called again."""
    server: str | None = None
    """The MCP server that offers it; null: it is written in the app's own code."""
    remote_name: str | None = None
    """As that server calls it."""
    implementation: str | None = None
    """What that server says it is: name and version."""
    hints: dict[str, bool] | None = None
    """What that server says about it. Nobody believes it before a steward confirms it."""
    declares_risk: bool = False
    """False: it does not say how risky it is, and ``risk`` is what is assumed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolDeclaration:
    """What is known of a tool before it is called."""

    risk: Risk | None = None
    """None: nobody says how risky it is."""
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Happened:
    """A probe's answer: the call took effect, and this is what it would have returned."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """A probe's answer: the call took no effect, and never will."""


class ToolError(CortexError):
    """Raised by a tool: this failed and nothing happened. The model is told."""

    code = "tool_error"
    http_status = 424
    default_hint = "Nothing was changed: correct the call, or go another way."


class UncertainOutcome(CortexError):
    """Raised by a tool: it cannot tell whether it happened. The call is settled as `on_uncertain` says."""

    code = "uncertain_outcome"
    http_status = 409
    default_hint = "Find out whether it happened before it is done again."


class InvalidArguments(CortexError):
    """The model called a tool with arguments that it does not take. The message is written for the model."""

    code = "invalid_arguments"
    http_status = 422
    default_hint = "Correct the arguments and call the tool again."


class InvalidApp(SetupError):
    """An app or a tool is declared in a way that cannot work."""

    code = "invalid_app"
    default_hint = "Correct the declaration in your code, then start the worker again."


def is_number(value: object, least: float, most: float) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and least <= value <= most


def is_tool_name(name: str) -> bool:
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


ToolName = Annotated[str, Field(strict=True, min_length=1, max_length=MAX_NAME, pattern=r"^[a-z][a-z0-9_.]*$")]
Digest = Annotated[str, Field(strict=True, pattern=r"^[a-f0-9]{64}$")]


@draft(config=DRAFT, frozen=True, kw_only=True)
class ConfirmationDraft:
    """What is confirmed about a tool. At least one of `read_only`, `idempotent` and `risk`."""

    tool: ToolName
    digest: Digest
    """Of the version that was looked at: no other one is confirmed."""
    app: Slug | None = None
    """Where only one app has such a tool it need not be named."""
    read_only: StrictBool = False
    """It changes nothing: it is called without asking, unless a policy says otherwise."""
    idempotent: StrictBool = False
    """Called twice with the same arguments it does the thing once: an uncertain call is simply sent again."""
    risk: Risk | None = None
    note: Note | None = None

    def __post_init__(self) -> None:
        if not self.read_only and not self.idempotent and self.risk is None:
            raise PydanticCustomError("nothing_confirmed", "say what is confirmed: `read_only`, `idempotent` or `risk`")


@dataclass(frozen=True, kw_only=True, slots=True)
class Confirmed:
    """What holds for calls of one version of a tool."""

    read_only: bool = False
    idempotent: bool = False
    risk: Risk | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolConfirmation:
    id: UUID
    app: str
    tool_name: str
    digest: str
    read_only: bool
    """Whether the tool changes nothing."""
    idempotent: bool
    """Whether a second call with the same arguments has no further effect."""
    risk: Risk | None
    note: str | None
    confirmed_by: str
    created_at: datetime
    revoked_at: datetime | None
    """Since when it holds no more."""
    revoked_by: str | None
    current: bool
    """Whether it is about the newest version of the tool. False: the tool changed, and is asked about again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedTool:
    """One version of a tool, and when it became the newest."""

    app: str
    name: str
    digest: str
    description: str
    server: str | None
    """The MCP server that offers it; null for a tool of the app's own code."""
    implementation: str | None
    """What that server says it is: name and version."""
    hints: dict[str, bool] | None
    """What that server says about it; counts only once a steward confirmed it."""
    published_at: datetime
    newest: bool
    """Whether it is the newest version of the tool."""
    changed: bool
    """There was another version before this one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolServer:
    """An MCP server, as one worker has it."""

    app: str
    name: str
    """The name of the server in the app."""
    worker: str | None
    """Its name, for platform keys: tenants share the machines and do not see them."""
    state: str
    """`starting`, `up` or `down`."""
    since: datetime
    """Since when it has been in this state."""
    reason: str | None
    """Why it is down: in full for platform keys, else what kind of reason it is."""
    tools: int
    """How many of its tools that worker offers."""

    @property
    def for_tenants(self) -> ToolServer:
        return replace(self, worker=None, reason=trouble(self.reason))


_TROUBLES = {
    "it does not answer": ("it did not answer",),
    "it refuses the worker": ("it refuses",),
    "it ended": ("it ended", "it was killed", "it closed", "it does not read", "it does not know its session"),
    "it broke the rules": (
        "it sent", "it answered with more", "it offers more", "it changed its list", "the list of its tools",
    ),
    "the worker stops": ("the worker stops",),
    "no worker runs it": ("no worker runs it",),
}  # fmt: skip
"""By kind: how the reasons begin."""


def trouble(reason: str | None) -> str | None:
    """What kind of reason this is. The whole one may name programs, addresses and directories of the operator."""
    if not reason:
        return None
    kinds = (kind for kind, texts in _TROUBLES.items() if reason.startswith(texts))
    return next(kinds, "it cannot be started or reached")
