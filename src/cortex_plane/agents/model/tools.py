"""Tools: what agents may call, what is declared about them, and how a call may end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cortex_plane.kernel.errors import CortexError, SetupError

MAX_NAME = 64
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")


class Risk(StrEnum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


RISKS = tuple(Risk)
"""From the lowest to the highest."""


def highest_risk(declared: Risk, *known: Risk | None) -> Risk:
    """What is declared about a call never lowers what is known of its tool. None: nothing is known."""
    return max((declared, *(risk for risk in known if risk is not None)), key=RISKS.index)


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
    read_only: bool
    risk: Risk
    timeout_seconds: float
    on_uncertain: OnUncertain | None
    """None for read-only tools: they leave nothing uncertain and are simply called again."""
    server: str | None = None
    """The MCP server that offers it; None: it is written in the app's own code."""
    remote_name: str | None = None
    """As that server calls it."""
    implementation: str | None = None
    """What that server says it is: name and version."""
    hints: dict[str, bool] | None = None
    """What that server says about it. Nobody believes it before a steward confirms it."""


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


def is_tool_name(name: str) -> bool:
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


def provider_name(name: str) -> str:
    """The name a provider sees: none of them takes dots."""
    return name.replace(".", "_")
