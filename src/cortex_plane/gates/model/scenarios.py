"""Scenarios of stewards: what happens in a session, what is expected of a call, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints
from pydantic.dataclasses import dataclass as draft

from cortex_plane.agents.model.tools import ToolDeclaration
from cortex_plane.gates.model.atlases import AtlasFile
from cortex_plane.kernel.canonical import check_text
from cortex_plane.kernel.fields import DRAFT, Risk, refused_as
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.sessions.model.sessions import SessionKind

MAX_FILE_BYTES = 1024 * 1024


class EventKind(StrEnum):
    SAID = "said"
    ANSWERED = "answered"
    IGNORED = "ignored"
    """The agent says something else instead of answering what stops its session."""
    CALLED = "called"
    """It runs, where it is allowed."""
    APPROVED = "approved"
    """A call is made, and people approve it."""
    MINUTES = "minutes"
    REQUESTED = "requested"
    FAILED = "failed"
    TRIGGERED = "triggered"
    """The code of a custom trigger says yes; by the gate's id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioEvent:
    kind: EventKind
    line: int
    text: str = ""
    """What was said, or which gate, action or context."""
    minutes: float = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    risk: Risk | None = None
    """Of the call: it counts where it is higher than what the tool declares."""
    answers: Mapping[str, Any] = field(default_factory=dict)
    objections: Mapping[str, str] = field(default_factory=dict)
    """What the app's validators have against an answer, by question; elsewhere they have nothing."""
    accepted: bool = True
    """Of an answer: whether it must be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What is None is not looked at."""

    decision: PolicyVerdict | None = None
    rule: str | None = None
    """Without the version of the policies."""
    votes: int | None = None
    """How many people must approve."""
    reason: str | None = None
    gates: tuple[str, ...] | None = None
    """That fire for the call, whatever their mode."""
    questions: tuple[str, ...] | None = None
    """That wait for the agent after the call."""
    people: tuple[str, ...] | None = None
    """Gates that a person would pass."""
    contexts: tuple[str, ...] | None = None
    guidance: tuple[str, ...] | None = None
    """The gates whose guidance the agent has."""
    open: tuple[str, ...] | None = None
    shut: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioSetting:
    """What a scenario is played under. With a plane, all of it but the agent and the kind of session is the plane's."""

    agent: str | None = None
    teams: tuple[str, ...] = ("main",)
    """The slug of its team, and of that team's parent."""
    session_kind: SessionKind = SessionKind.CONVERSATION
    policies: str | None = None
    """The name of a policy file; None: the org has none."""
    tools: Mapping[str, ToolDeclaration] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    name: str
    line: int
    setting: ScenarioSetting = ScenarioSetting()
    events: tuple[ScenarioEvent, ...] = ()
    call: ScenarioEvent | None = None
    expect: Expected = Expected()


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioOutcome:
    name: str
    line: int
    passed: bool
    faults: list[str]
    """Each with its line; empty: it is as expected."""
    found: dict[str, Any]
    """What was decided about the call, and what the session has after it."""


MAX_ATLASES = 20
ScenarioText = Annotated[str, StringConstraints(max_length=MAX_FILE_BYTES)]


@draft(config=DRAFT, frozen=True, kw_only=True)
class ScenarioRun:
    """Scenarios to play under the policies, tools and agents of the org."""

    scenarios: Annotated[ScenarioText, refused_as("unstorable_text", check_text, "scenarios")]
    """A scenario file. Each of its scenarios names its agent."""
    name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")] = "scenarios.yaml"
    """What faults in it are named after."""
    atlases: Annotated[list[AtlasFile], Field(max_length=MAX_ATLASES)] = Field(default_factory=list)
    """Instead of those that the agents name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioReport:
    policies: str
    """The version that they were played under."""
    outcomes: list[ScenarioOutcome]
