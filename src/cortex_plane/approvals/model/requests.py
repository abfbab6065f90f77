"""Spec 3's words for what the plane has already: a request is a job, and approving a tool decides its approval."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass as draft

from cortex_plane.kernel.fields import DRAFT, Note


@draft(config=DRAFT, frozen=True, kw_only=True)
class ToolDecision:
    """Yes or no to one call of a tool, as it stands now."""

    approved: Annotated[bool, Field(strict=True)]
    reason: Note | None = None
    version: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] | None = None
    """Of the approval, as whoever decides saw it. Needed where the call was joined by others, edited or asked for again."""
