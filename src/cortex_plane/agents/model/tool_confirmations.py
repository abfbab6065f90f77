"""Tool confirmations: what a steward vouches for about a tool that an MCP server offers.

A server's own hints are believed by nobody. A confirmation holds for one org and for exactly the version that was looked
at: once the tool changes, it holds no more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass as draft
from pydantic_core import PydanticCustomError

from cortex_plane.agents.model.tools import MAX_NAME, Risk
from cortex_plane.kernel.fields import DRAFT, Note, Slug

ToolName = Annotated[
    str, Field(strict=True, min_length=1, max_length=MAX_NAME, pattern=r"^[a-z][a-z0-9_.]*$")
]
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
            raise PydanticCustomError(
                "nothing_confirmed", "say what is confirmed: `read_only`, `idempotent` or `risk`"
            )


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
    idempotent: bool
    risk: Risk | None
    note: str | None
    confirmed_by: str
    created_at: datetime
    revoked_at: datetime | None
    """Since when it holds no more."""
    revoked_by: str | None
    current: bool
    """Whether it is about the newest version of the tool. False: the tool changed, and is asked about again."""

    @property
    def holds(self) -> Confirmed:
        return Confirmed(read_only=self.read_only, idempotent=self.idempotent, risk=self.risk)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedTool:
    """One version of a tool, and when it became the newest."""

    app: str
    name: str
    digest: str
    description: str
    server: str | None
    implementation: str | None
    hints: dict[str, bool] | None
    published_at: datetime
    newest: bool
    changed: bool
    """There was another version before this one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolServer:
    """An MCP server, as one worker has it."""

    app: str
    name: str
    worker: str | None
    """Its name, for platform keys: tenants share the machines and do not see them."""
    state: str
    """`starting`, `up` or `down`."""
    since: datetime
    reason: str | None
    """Why it is down: in full for platform keys, else what kind of reason it is."""
    tools: int
    """How many of its tools that worker offers."""

    @property
    def for_tenants(self) -> ToolServer:
        return replace(self, worker=None, reason=trouble(self.reason))


_TROUBLES = (
    ("it did not answer", "it does not answer"),
    ("it refuses", "it refuses the worker"),
    ("it ended", "it ended"),
    ("it was killed", "it ended"),
    ("it closed", "it ended"),
    ("it does not read", "it ended"),
    ("it does not know its session", "it ended"),
    ("it sent", "it broke the rules"),
    ("it answered with more", "it broke the rules"),
    ("it offers more", "it broke the rules"),
    ("it changed its list", "it broke the rules"),
    ("the list of its tools", "it broke the rules"),
    ("the worker stops", "the worker stops"),
    ("no worker runs it", "no worker runs it"),
)


def trouble(reason: str | None) -> str | None:
    """What kind of reason this is. The whole one may name programs, addresses and directories of the operator."""
    if not reason:
        return None
    return next(
        (kind for said, kind in _TROUBLES if reason.startswith(said)), "it cannot be started or reached"
    )
