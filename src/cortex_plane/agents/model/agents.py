"""Agents: reusable definitions whose configuration is kept as immutable versions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass as draft
from pydantic_core import PydanticCustomError

from cortex_plane.agents.model.completions import Script
from cortex_plane.kernel import fields


class AgentStatus(StrEnum):
    """Whether an agent takes work."""

    ACTIVE = "ACTIVE"
    DISABLED = "DISABLED"
    """Refuses new sessions; existing ones go on."""
    ARCHIVED = "ARCHIVED"
    """Hidden from lists, kept for history; refuses new sessions."""


class CheckpointGranularity(StrEnum):
    PER_STEP = "per_step"
    PER_TOOL_CALL = "per_tool_call"
    PER_LLM_RESPONSE = "per_llm_response"


Dollars = Annotated[float, Field(strict=True, ge=0.000001, le=10**9)]


@draft(config=fields.DRAFT, frozen=True, kw_only=True)
class ModelConfig:
    """Which model answers for the agent, and how."""

    model: fields.Name
    """Provider and model, such as `anthropic:claude-sonnet-5`."""
    temperature: Annotated[float, Field(strict=True, ge=0, le=2)] | None = None
    """How freely the model chooses its words; the provider's default where it is left out."""
    max_tokens: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] | None = None
    """How many tokens an answer may have."""
    context_tokens: Annotated[int, Field(strict=True, ge=1_000, le=100_000_000)] | None = None
    """What one question to the model may hold, its answer included; 100,000 where none is given."""
    context_turns: Annotated[int, Field(strict=True, ge=4, le=100_000)] | None = None
    """How many turns it may hold; 200 where none is given."""
    system_prompt: fields.Text | None = None
    """What the model is told before the conversation."""
    script: Script | None = None
    """What the model called `scripted` answers, turn by turn."""
    stand_in: Literal["script"] | None = None
    """Where there is no key for the model's provider, the script answers in its place, and says so."""


@draft(config=fields.DRAFT, frozen=True, kw_only=True)
class ResourceLimits:
    """What one agent may consume."""

    max_concurrent_jobs: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 5
    """How many of its jobs run at the same time."""
    max_memory_mb: Annotated[int, Field(strict=True, ge=16, le=1_048_576)] = 512
    """Megabytes of memory; kept with the agent, and not enforced by the plane."""
    timeout_seconds: Annotated[int, Field(strict=True, ge=1, le=30 * 24 * 3600)] = 3600
    """Of a job, counting the time in which it runs."""
    step_timeout_seconds: Annotated[int, Field(strict=True, ge=1, le=24 * 3600)] = 600
    """How long one step of a job may take."""
    call_timeout_seconds: Annotated[int, Field(strict=True, ge=1, le=24 * 3600)] = 300
    """Of one answer of the model."""
    chunk_timeout_seconds: Annotated[int, Field(strict=True, ge=1, le=3600)] = 60
    """Of the silence between two pieces of an answer."""
    max_iterations: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 100
    """Responses of the model in one job, over all its resumes."""
    token_budget: Annotated[int, Field(strict=True, ge=1, le=10**12)] | None = None
    """Of a job: prompt and completion, over all its attempts."""
    cost_budget_usd: Dollars | None = None
    """Of a job."""
    daily_token_budget: Annotated[int, Field(strict=True, ge=1, le=10**12)] | None = None
    """Of the agent, in a day of UTC: over it, its jobs sleep until the next one."""
    daily_cost_budget_usd: Dollars | None = None
    """Of the agent, in a day of UTC, in US dollars."""
    retry_base_seconds: Annotated[float, Field(strict=True, ge=0.001, le=3600)] = 1.0
    """The pause before the first retry; further ones are longer."""
    retry_cap_seconds: Annotated[float, Field(strict=True, ge=0.001, le=24 * 3600)] = 300.0
    """The longest pause between two retries."""
    idle_timeout_seconds: Annotated[int, Field(strict=True, ge=1, le=365 * 24 * 3600)] = 86_400
    """A conversation in which nothing happens for so long is paused, until its person's next message."""


class PromptChange(StrEnum):
    """What becomes of a job whose prompt differs from the one that it began with."""

    CONTINUE = "continue"
    HOLD = "hold"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class ApprovalTimes:
    """How long people may take to decide about an agent's calls."""

    token_ttl_seconds: int = 86_400
    """Where no policy names a time."""
    max_ttl_seconds: int = 604_800
    """Whatever a policy names."""


@dataclass(frozen=True, slots=True)
class SkillSettings:
    """The part of a skill configuration that the plane reads; the rest is the agent's own."""

    app: str
    tools: frozenset[str] | None
    """The tools of the app that the agent may call; None for all."""
    side_effect_tools: frozenset[str]
    """Treated as having side effects, whatever they declare."""
    checkpoint_granularity: CheckpointGranularity
    on_prompt_change: PromptChange
    approval: ApprovalTimes
    run: str | None = None
    """The function of the app that is the agent; None for an agent that follows its model."""
    atlases: tuple[str, ...] = ()
    """The atlases that its sessions are bound to."""
    defer_outcomes: bool = True
    """The outcome of a call that may be repeated with its key waits a few milliseconds for the next response."""
    context_in_prompt: frozenset[str] | None = frozenset()
    """Keys of the session's context that its model reads in the system prompt; None for all."""
    ask_people: bool = False
    """The model may ask a person, with the tool `plane.ask_person`."""

    @classmethod
    def of(cls, config: dict[str, Any]) -> SkillSettings:
        tools = config.get("tools")
        return cls(
            app=config.get("app", DEFAULT_APP),
            tools=None if tools is None else frozenset(tools),
            side_effect_tools=frozenset(config.get("side_effect_tools") or ()),
            checkpoint_granularity=CheckpointGranularity(config.get("checkpoint_granularity") or "per_step"),
            on_prompt_change=PromptChange(config.get("on_prompt_change") or "continue"),
            approval=ApprovalTimes(**config.get("approval") or {}),
            run=config.get("run"),
            atlases=tuple(config.get("atlases") or ()),
            defer_outcomes=config.get("defer_outcomes") is not False,
            context_in_prompt=None if (keys := config.get("context_in_prompt")) is True else frozenset(keys or ()),
            ask_people=config.get("ask_people") is True,
        )


PLANE_SETTINGS = frozenset(
    {
        "app", "approval", "atlases", "checkpoint_granularity", "context_in_prompt", "defer_outcomes", "on_prompt_change",
        "run", "side_effect_tools", "tools",
    }
)  # fmt: skip
"""The keys of a skill configuration that `SkillSettings` reads."""


def own_settings(config: dict[str, Any]) -> dict[str, Any]:
    """What is the agent's own of its skill configuration."""
    return {key: value for key, value in config.items() if key not in PLANE_SETTINGS}


MAX_TTL_SECONDS = 604_800
DEFAULT_APP = "plane"
"""The app without tools that every worker has."""


def is_agent_name(name: str) -> bool:
    """Whether an app may call a code agent so."""
    return re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,99}", name) is not None


def _settings_known(config: dict[str, Any]) -> dict[str, Any]:
    """The plane reads these settings; the rest of a skill configuration is the agent's own."""
    for name, choices in (
        ("checkpoint_granularity", tuple(CheckpointGranularity)),
        ("on_prompt_change", tuple(PromptChange)),
    ):
        value = config.get(name)
        if value is not None and value not in choices:
            context = {"name": name, "choices": ", ".join(choices)}
            raise PydanticCustomError(name, "{name} must be one of {choices}", context)
    if "$plane" in config:
        raise PydanticCustomError("reserved_key", "$plane is a key of the plane's own")
    keys = config.get("context_in_prompt", False)
    if not (isinstance(keys, bool) or (isinstance(keys, list) and all(isinstance(key, str) for key in keys))):
        raise PydanticCustomError(
            "context_in_prompt", "context_in_prompt must be true, false or a list of keys of the session's context"
        )
    for name in ("defer_outcomes", "ask_people"):
        if not isinstance(config.get(name, True), bool):
            raise PydanticCustomError(name, "{name} must be true or false", {"name": name})
    for name in ("side_effect_tools", "tools"):
        value = config.get(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(t, str) for t in value)):
            raise PydanticCustomError(name, "{name} must be a list of tool names", {"name": name})
    atlas_ids = config.get("atlases")
    if atlas_ids is not None and not (
        isinstance(atlas_ids, list)
        and len(atlas_ids) <= fields.MAX_ATLASES
        and all(isinstance(id, str) and re.fullmatch(fields.ATLAS_ID_PATTERN, id) for id in atlas_ids)
        and len(set(atlas_ids)) == len(atlas_ids)
    ):
        raise PydanticCustomError(
            "atlases",
            "atlases must be a list of at most {most} different atlas ids, such as `com.acme.support`",
            {"most": fields.MAX_ATLASES},
        )
    run = config.get("run")
    if run is not None and not (isinstance(run, str) and is_agent_name(run)):
        raise PydanticCustomError(
            "run", "run must be the name of a code agent of the app, such as `deploy`: at most 100 characters"
        )
    times = config.get("approval") or {}
    if not isinstance(times, dict) or any(
        name not in ("token_ttl_seconds", "max_ttl_seconds")
        or isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TTL_SECONDS
        for name, value in times.items()
    ):  # fmt: skip
        raise PydanticCustomError(
            "approval",
            "approval may have token_ttl_seconds and max_ttl_seconds, each from 1 to {most}",
            {"most": MAX_TTL_SECONDS},
        )
    app = config.get("app", DEFAULT_APP)
    if not (isinstance(app, str) and 2 <= len(app) <= 100 and re.fullmatch(fields.SLUG_PATTERN, app)):
        raise PydanticCustomError("app", "app must be the name of an app: lower-case letters, digits and dashes")
    return config


SkillConfig = Annotated[fields.JsonObject, AfterValidator(_settings_known)]
ChannelPermissions = Annotated[list[fields.ChannelType], Field(max_length=50)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Agent:
    id: UUID
    team_id: UUID
    name: str
    slug: str
    status: AgentStatus
    role: str
    """What the agent does, in a few words."""
    description: str | None
    channel_permissions: list[str]
    """Channels the agent may be reached on; empty means all."""
    config_version: int
    """The number of its newest version."""
    model_config: dict[str, Any]
    skill_config: dict[str, Any]
    resource_limits: dict[str, Any]
    repeats_steps: bool = False
    """Whether it is a code agent of an earlier release: if a worker dies, its steps that declare nothing run again, until the next release.
    Declare `repeatable` or `on_uncertain` at each step; `cortex doctor preflight --replay` lists such steps of open jobs."""
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentVersion:
    """One immutable configuration. A job keeps the version it started with."""

    version: int
    """Its number, counted from 1."""
    model_config: dict[str, Any]
    skill_config: dict[str, Any]
    resource_limits: dict[str, Any]
    created_by: str
    created_at: datetime


@draft(config=fields.DRAFT, frozen=True, kw_only=True)
class AgentDraft:
    name: fields.Name
    slug: fields.Slug
    role: fields.Name
    """What the agent does, in a few words."""
    team: fields.Ref
    model_config: ModelConfig
    description: fields.Note | None = None
    skill_config: SkillConfig = Field(default_factory=dict)
    resource_limits: ResourceLimits = Field(default_factory=ResourceLimits)
    channel_permissions: ChannelPermissions = Field(default_factory=list)


@draft(config=fields.DRAFT, frozen=True, kw_only=True)
class AgentChange:
    """Absent or null leaves a field as it is; an empty description removes it.

    A change to one of the three configurations makes a new version.
    """

    name: fields.Name | None = None
    role: fields.Name | None = None
    """What the agent does, in a few words."""
    team: fields.Ref | None = None
    status: AgentStatus | None = None
    description: fields.Note | None = None
    model_config: ModelConfig | None = None
    skill_config: SkillConfig | None = None
    resource_limits: ResourceLimits | None = None
    channel_permissions: ChannelPermissions | None = None
