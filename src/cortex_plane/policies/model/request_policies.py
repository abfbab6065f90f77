"""The policies that one request brings along: rows that hold for a single job, and only tighten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, Field, StrictBool, StringConstraints
from pydantic.dataclasses import dataclass as draft
from pydantic_core import PydanticCustomError

from cortex_plane.kernel.canonical import canonical, check_text
from cortex_plane.kernel.conditions import MAX_LENGTH, Condition
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.extras import MissingExtra
from cortex_plane.kernel.fields import DRAFT, ChannelType, Clearance, JsonObject, Name
from cortex_plane.policies.model.authorization import PolicyVerdict
from cortex_plane.policies.model.policies import (
    MAX_TIMEOUT_SECONDS,
    OnDeny,
    PolicyRow,
    Quorum,
    RoleVotes,
    Template,
)
from cortex_plane.tenancy.model.orgs import Role

MAX_NAME = 100
MAX_TARGET = 200
MAX_REQUEST_ROWS = 20
MAX_NAMED = 20
MAX_VOTES = 10
MAX_CHANNELS = 20
MAX_DETAILS_BYTES = 8 * 1024


def check_condition(text: str) -> str:
    """Here where it can be; the plane checks it in any case."""
    try:
        Condition.of(check_text(text, "when"))
    except MissingExtra:
        return text
    except InvalidInput as error:
        raise PydanticCustomError("condition", "{reason}", {"reason": error.message}) from None
    return text


def _no_permission(effect: PolicyVerdict) -> PolicyVerdict:
    if effect is PolicyVerdict.ALLOW:
        raise PydanticCustomError(
            "only_tightens", "must be requires_approval or deny: a request only tightens"
        )
    return effect


def _only_off(standing: bool) -> bool:
    if standing:
        raise PydanticCustomError("only_tightens", "must be false: a request only tightens")
    return standing


def _no_guest(role: Role) -> Role:
    if role is Role.GUEST:
        raise PydanticCustomError("guest_role", "guests decide nothing")
    return role


def _small(details: dict[str, Any]) -> dict[str, Any]:
    size = len(canonical(details))
    if size > MAX_DETAILS_BYTES:
        raise PydanticCustomError(
            "too_large",
            "is {size} bytes; the limit is {limit}",
            {"size": size, "limit": MAX_DETAILS_BYTES},
        )
    return details


def _distinct(named: list[Any]) -> list[Any]:
    return list(dict.fromkeys(named))


Votes = Annotated[int, Field(strict=True, ge=1, le=MAX_VOTES)]
Seconds = Annotated[int, Field(strict=True, ge=1, le=MAX_TIMEOUT_SECONDS)]
SecondsOrNever = Annotated[int, Field(strict=True, ge=0, le=MAX_TIMEOUT_SECONDS)]
TargetGlob = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_TARGET, pattern=r"^[^\x00-\x20\x7f]+$")
]
RowName = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_NAME, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
]


@draft(config=DRAFT, frozen=True, kw_only=True)
class QuorumDraft:
    """How many must say yes; by role, so many of them with that role."""

    votes: Votes | None = None
    """Where absent: as many as the roles need."""
    roles: dict[Annotated[Role, AfterValidator(_no_guest)], Votes] = Field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.votes is not None and any(votes > self.votes for votes in self.roles.values()):
            raise PydanticCustomError("too_few_votes", "a role asks for more votes than there are in all")

    def as_quorum(self) -> Quorum:
        return quorum_of(self.votes, self.roles)


def quorum_of(votes: int | None, roles: Mapping[Role, int]) -> Quorum:
    return Quorum(
        votes=votes if votes is not None else max(roles.values(), default=1),
        roles=tuple(RoleVotes(role=role, votes=needed) for role, needed in sorted(roles.items())),
    )


@draft(config=DRAFT, frozen=True, kw_only=True)
class RequestPolicy:
    """A row that one job brings along. It only tightens what holds anyway."""

    name: RowName
    target: TargetGlob
    effect: Annotated[PolicyVerdict, AfterValidator(_no_permission)]
    when: Annotated[str, StringConstraints(max_length=MAX_LENGTH), AfterValidator(check_condition)] | None = (
        None
    )
    clearance: Clearance | None = None
    template: Template | None = None
    timeout_seconds: Seconds | None = None
    remind_before_seconds: Seconds | None = None
    on_deny: OnDeny | None = None
    self_approval: StrictBool | None = None
    quorum: Votes | QuorumDraft | None = None
    escalate_before_seconds: SecondsOrNever | None = None
    """0 for never."""
    channels: (
        Annotated[list[ChannelType], Field(max_length=MAX_CHANNELS), AfterValidator(_distinct)] | None
    ) = None
    standing: Annotated[StrictBool, AfterValidator(_only_off)] | None = None
    approvers: (
        Annotated[list[UUID], Field(min_length=1, max_length=MAX_NAMED), AfterValidator(_distinct)] | None
    ) = None
    """Ids of members: of those who may decide, only these are asked; where no policy says who decides, these do."""
    action: Name | None = None
    """What is to happen, in one line; shown to whoever decides."""
    details: Annotated[JsonObject, AfterValidator(_small)] | None = None

    def as_row(self) -> PolicyRow:
        return PolicyRow(
            name=self.name,
            target=self.target,
            effect=self.effect,
            condition=self.when,
            required_clearance=self.clearance,
            template=self.template,
            timeout_seconds=self.timeout_seconds,
            reminder_seconds=self.remind_before_seconds,
            on_deny=self.on_deny,
            self_approval=self.self_approval,
            quorum=self.quorum.as_quorum() if isinstance(self.quorum, QuorumDraft) else _votes(self.quorum),
            escalation_seconds=self.escalate_before_seconds,
            channels=None if self.channels is None else tuple(self.channels),
            standing=self.standing,
            named=None if self.approvers is None else tuple(self.approvers),
            action=self.action,
            details=self.details,
        )


def _votes(votes: int | None) -> Quorum | None:
    return None if votes is None else Quorum(votes=votes)


RequestPolicies = Annotated[list[RequestPolicy], Field(max_length=MAX_REQUEST_ROWS)]
