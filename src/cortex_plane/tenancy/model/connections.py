"""Channel connections (a bot, a workspace, a mailbox, a webhook of one org) and the people reached through them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, StrictBool, StringConstraints
from pydantic.dataclasses import dataclass as draft
from pydantic_core import PydanticCustomError

from cortex_plane.kernel.addresses import MAX_URL, Allowed, check_url, url_fault
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import DRAFT, ChannelType, ExternalId, Name


def _address(value: str) -> str:
    fault = url_fault(value)
    if fault is not None:
        raise PydanticCustomError("url", "{fault}", {"fault": fault})
    return value


Url = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL), AfterValidator(_address)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    id: UUID
    channel_type: str
    name: str
    url: str | None = None
    """Where the messages of a webhook go."""
    failing_since: datetime | None = None
    """Nothing has arrived since then."""
    disabled_at: datetime | None
    disabled_reason: str | None = None
    """Why the plane disabled it by itself."""
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class NewConnection(Connection):
    """A connection, and once the secret with which its messages are signed."""

    secret: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NewSecret:
    """A secret that has taken the place of another, which counts for a while longer."""

    connection_id: UUID
    secret: str
    previous_valid_until: datetime


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
    url: Url | None = None


@draft(config=DRAFT, frozen=True, kw_only=True)
class ConnectionChange:
    name: Name | None = None
    url: Url | None = None
    enabled: StrictBool | None = None


@draft(config=DRAFT, frozen=True, kw_only=True)
class MappingDraft:
    """A person of the org, and the name that the other system has for them."""

    member_id: UUID
    external_user: ExternalId


def check_address(channel_type: str, url: str | None, allowed: Allowed) -> None:
    """A webhook has an address that messages may be sent to; nothing else has one."""
    if channel_type != CHANNEL and url is not None:
        raise InvalidInput(
            f"A connection of the type {channel_type} has no address.", hint="Leave `url` out.", field="url"
        )
    if channel_type == CHANNEL:
        if url is None:
            raise InvalidInput(
                "A webhook needs an address.",
                hint="Send `url`: https://hooks.example.com/cortex.",
                field="url",
            )
        check_url(url, allowed)


CHANNEL = "webhook"
"""The type of the connections that speak it."""
