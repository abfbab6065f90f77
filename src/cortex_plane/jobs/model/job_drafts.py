"""Jobs as callers submit and steer them."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import Field
from pydantic.dataclasses import dataclass as draft

from cortex_plane.kernel.fields import DRAFT, AtlasIds, JsonObject, Note, Ref
from cortex_plane.policies.model.versions import RequestPolicies


@draft(config=DRAFT, frozen=True, kw_only=True)
class JobDraft:
    """What a caller submits. Without a session the plane opens a programmatic one."""

    agent: Ref
    payload: JsonObject = Field(default_factory=dict)
    session_id: UUID | None = None
    max_retries: Annotated[int, Field(strict=True, ge=0, le=100)] = 3
    policies: RequestPolicies = Field(default_factory=list)
    """Rows that hold for this job alone. They only tighten."""
    atlases: AtlasIds = Field(default_factory=list)
    """Atlases that its session is bound to from now on, beside those of the agent."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class Cancellation:
    reason: Note | None = None


@draft(config=DRAFT, frozen=True, kw_only=True)
class Pause:
    reason: Note | None = None


@draft(config=DRAFT, frozen=True, kw_only=True)
class Resumption:
    """A resume lifts what an operator may lift; an uncertain effect is lifted by its answer alone."""

    note: Note | None = None
