"""Agents: reusable definitions whose configuration is kept as immutable versions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass as draft
from pydantic_core import PydanticCustomError

from cortex_plane.domain.fields import DRAFT, ChannelType, JsonObject, Name, Note, Ref, Slug, Text


class AgentStatus(StrEnum):
    ACTIVE = "ACTIVE"
    DISABLED = "DISABLED"
    """Refuses new sessions; existing ones go on."""
    ARCHIVED = "ARCHIVED"
    """Hidden from lists, kept for history; refuses new sessions."""


class CheckpointGranularity(StrEnum):
    PER_STEP = "per_step"
    PER_TOOL_CALL = "per_tool_call"
    PER_LLM_RESPONSE = "per_llm_response"


@draft(config=DRAFT, frozen=True, kw_only=True)
class ModelConfig:
    """Which model answers for the agent, and how."""

    model: Name
    temperature: Annotated[float, Field(strict=True, ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] | None = None
    system_prompt: Text | None = None


@draft(config=DRAFT, frozen=True, kw_only=True)
class ResourceLimits:
    """What one agent may consume."""

    max_concurrent_jobs: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 5
    max_memory_mb: Annotated[int, Field(strict=True, ge=16, le=1_048_576)] = 512
    timeout_seconds: Annotated[int, Field(strict=True, ge=1, le=30 * 24 * 3600)] = 3600


def _granularity_known(config: dict[str, Any]) -> dict[str, Any]:
    """The plane reads these two settings; the rest of a skill configuration is the agent's own."""
    level = config.get("checkpoint_granularity")
    if level is not None and level not in tuple(CheckpointGranularity):
        raise PydanticCustomError(
            "checkpoint_granularity",
            "checkpoint_granularity must be one of {choices}",
            {"choices": ", ".join(CheckpointGranularity)},
        )
    tools = config.get("side_effect_tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(t, str) for t in tools)):
        raise PydanticCustomError("side_effect_tools", "side_effect_tools must be a list of tool names")
    return config


SkillConfig = Annotated[JsonObject, AfterValidator(_granularity_known)]
ChannelPermissions = Annotated[list[ChannelType], Field(max_length=50)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Agent:
    id: UUID
    team_id: UUID
    name: str
    slug: str
    status: AgentStatus
    role: str
    description: str | None
    channel_permissions: list[str]
    """Channels the agent may be reached on; empty means all."""
    config_version: int
    model_config: dict[str, Any]
    skill_config: dict[str, Any]
    resource_limits: dict[str, Any]
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentVersion:
    """One immutable configuration. A job keeps the version it started with."""

    version: int
    model_config: dict[str, Any]
    skill_config: dict[str, Any]
    resource_limits: dict[str, Any]
    created_by: str
    created_at: datetime


@draft(config=DRAFT, frozen=True, kw_only=True)
class AgentDraft:
    name: Name
    slug: Slug
    role: Name
    team: Ref
    model_config: ModelConfig
    description: Note | None = None
    skill_config: SkillConfig = Field(default_factory=dict)
    resource_limits: ResourceLimits = Field(default_factory=ResourceLimits)
    channel_permissions: ChannelPermissions = Field(default_factory=list)


@draft(config=DRAFT, frozen=True, kw_only=True)
class AgentChange:
    """Absent or null leaves a field as it is; an empty description removes it.

    A change to one of the three configurations makes a new version.
    """

    name: Name | None = None
    role: Name | None = None
    team: Ref | None = None
    status: AgentStatus | None = None
    description: Note | None = None
    model_config: ModelConfig | None = None
    skill_config: SkillConfig | None = None
    resource_limits: ResourceLimits | None = None
    channel_permissions: ChannelPermissions | None = None
