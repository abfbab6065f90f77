"""Channel connections (a bot, a workspace, a mailbox of one org) and the people reached through them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import StrictBool
from pydantic.dataclasses import dataclass as draft

from cortex_plane.domain.fields import DRAFT, ChannelType, Name


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    id: UUID
    channel_type: str
    name: str
    disabled_at: datetime | None
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Mapping:
    """One person on one connection. It is always a person, never a group."""

    id: UUID
    connection_id: UUID
    user_account_id: UUID
    channel_type: str
    channel_user_id: str
    metadata: dict[str, Any]
    verified_at: datetime | None
    created_at: datetime


@draft(config=DRAFT, frozen=True, kw_only=True)
class ConnectionDraft:
    channel_type: ChannelType
    name: Name


@draft(config=DRAFT, frozen=True, kw_only=True)
class ConnectionChange:
    name: Name | None = None
    enabled: StrictBool | None = None
