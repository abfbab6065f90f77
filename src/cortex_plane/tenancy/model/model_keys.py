"""The keys with which an org asks model providers itself. They are sealed; nobody is shown more than their last characters."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pydantic import Field
from pydantic.dataclasses import dataclass as draft

from cortex_plane.kernel.fields import DRAFT


class Provider(StrEnum):
    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    """And whoever speaks its chat completions protocol."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class ModelKeyDraft:
    key: str = Field(min_length=16, max_length=500, pattern=r"^[\x21-\x7e]+$", repr=False)
    """As the provider gave it out. It is never told again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelKey:
    provider: Provider
    last_characters: str
    set_by: str
    created_at: datetime
    updated_at: datetime
