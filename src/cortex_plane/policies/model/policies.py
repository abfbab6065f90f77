"""Policies: rows, effects, quorums, the verdict on a call, its explanation, and changes of rules that wait for a person."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.fields import Risk
from cortex_plane.tenancy.model.orgs import Role

if TYPE_CHECKING:
    from cortex_plane.agents.model.tools import Confirmed


TOOL_CALL = "tool_call"
DEFAULT_TIMEOUT_SECONDS = 24 * 3600
MAX_TIMEOUT_SECONDS = 7 * 24 * 3600


class Level(StrEnum):
    """Where a policy comes from. A more specific level comes first."""

    PLATFORM = "platform"
    ORG = "org"
    PARENT_TEAM = "parent_team"
    TEAM = "team"
    REQUEST = "request"


class Template(StrEnum):
    """The default terms of a request, for what its policy does not set."""

    DEV_ONLY = "dev_only"
    DEV_REVIEW = "dev_review"
    FULL_PIPELINE = "full_pipeline"
    CRITICAL_PATH = "critical_path"


class OnDeny(StrEnum):
    """What a denial does to the job."""

    FAIL = "fail"
    CONTINUE = "continue"
    """The model is told, and goes another way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Approvers:
    """Who may decide: any of these. Each of them also needs the clearance."""

    owner: bool = False
    """The person whose session it is; where a session has none, whoever is admin or approver."""
    roles: tuple[Role, ...] = ()
    """Members with one of these roles."""
    members: tuple[UUID, ...] = ()
    """The ids of single members."""

    def joined(self, other: Approvers) -> Approvers:
        """Whoever is in either."""
        roles, members = dict.fromkeys((*self.roles, *other.roles)), dict.fromkeys((*self.members, *other.members))
        return Approvers(owner=self.owner or other.owner, roles=tuple(roles), members=tuple(members))


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleVotes:
    role: Role
    """The role that those who vote have."""
    votes: int
    """How many votes of that role are needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quorum:
    """How many people must say yes. One no ends it."""

    votes: int = 1
    """How many votes are needed in all."""
    roles: tuple[RoleVotes, ...] = ()
    """So many of them with this role. One person with two roles counts for both, and is one vote."""

    def in_words(self) -> str:
        roles = ", ".join(f"{role_votes.votes} {role_votes.role}" for role_votes in self.roles)
        votes = f"{self.votes} vote{'s' if self.votes > 1 else ''}"
        return f"{votes}, of them {roles}" if roles else votes


ONE_VOTE = Quorum()


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What an approval must fulfil. Nothing is left open: whatever a row did not say was inherited."""

    template: Template
    required_clearance: int
    timeout_seconds: int
    """How long its approvers have."""
    reminder_seconds: int | None
    """Remind so long before the deadline; null: never."""
    approvers: Approvers
    on_deny: OnDeny
    self_approval: bool
    """Whether the person whose message caused the job may approve."""
    quorum: Quorum = ONE_VOTE
    escalation_seconds: int | None = None
    """The first escalation comes so long before the deadline, the others spread over what is left; null: never."""
    escalations: tuple[Approvers, ...] = ()
    """Who is asked besides, one level after the other. The deadline stays."""
    channels: tuple[str, ...] | None = None
    """The only channels that carry it, besides the dashboard; null: all that its approvers have."""
    standing: bool = False
    """Whether an approver may say yes to more than this one call."""
    named: tuple[UUID, ...] | None = None
    """The request's own choice among those who may decide; null: any of them."""
    action: str | None = None
    """What the request itself says is to happen, in one line."""
    details: Mapping[str, Any] | None = field(default=None, hash=False)
    """And what it wants its approvers to see besides."""


OWNER_DECIDES = Terms(
    template=Template.DEV_ONLY,
    required_clearance=0,
    timeout_seconds=DEFAULT_TIMEOUT_SECONDS,
    reminder_seconds=None,
    approvers=Approvers(owner=True),
    on_deny=OnDeny.FAIL,
    self_approval=True,
    standing=True,
)
"""Where no row speaks of a call that may change something: its session's owner decides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFacts:
    """What a policy may look at."""

    target: str
    arguments: Mapping[str, Any]
    read_only: bool
    risk: Risk
    agent: str
    teams: tuple[UUID, ...] = ()
    """The agent's team, and its parent if it has one."""
    session_kind: str = "programmatic"
    action_type: str = TOOL_CALL
    declares_risk: bool = False
    """False: nobody said how risky its tool is, and ``risk`` is what is assumed."""
    allowed_by: str = ""
    """The rule of an atlas in force that speaks for it: where no policy matches, that decides instead of the default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyDecision:
    verdict: PolicyVerdict
    """What the policies say about the call."""
    rule: str
    """What decided, as the audit trail and the card name it: level, name of the row, version."""
    terms: Terms | None = None
    """Where a person must decide."""
    own_time_limit: int | None = None
    """Where no policy names a time, the agent's own holds, up to so many seconds."""
    reason: str | None = None
    """Why the policy that decided is there, in its steward's words."""


@dataclass(frozen=True, slots=True)
class TemplateTerms:
    """What a template says where a row is silent."""

    timeout_seconds: int
    reminder_seconds: int | None
    escalation_seconds: int | None
    approvers: Approvers
    self_approval: bool
    standing: bool
    escalates_once: bool = False
    """Only one level up, and not to the top."""


_HOUR = 3600
_OWNER = Approvers(owner=True)
_REVIEWERS = Approvers(roles=(Role.APPROVER, Role.ADMIN))
TEMPLATES: dict[Template, TemplateTerms] = {
    Template.DEV_ONLY: TemplateTerms(24 * _HOUR, None, None, _OWNER, self_approval=True, standing=True),
    Template.DEV_REVIEW: TemplateTerms(
        24 * _HOUR, 4 * _HOUR, 4 * _HOUR, _REVIEWERS, self_approval=False, standing=False, escalates_once=True
    ),
    Template.FULL_PIPELINE: TemplateTerms(
        48 * _HOUR, 8 * _HOUR, 8 * _HOUR, _REVIEWERS, self_approval=False, standing=False
    ),
    Template.CRITICAL_PATH: TemplateTerms(
        72 * _HOUR, 24 * _HOUR, 24 * _HOUR, _REVIEWERS, self_approval=False, standing=False
    ),
}
"""From the loosest to the strictest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyRow:
    """One rule. What is null is inherited: from the template, then from the platform's match, then from the default."""

    name: str
    """Its name, unique within its level of the file."""
    target: str
    """A glob over names of tools."""
    effect: PolicyVerdict
    """What it says about the calls that it matches."""
    action_type: str = TOOL_CALL
    """What kind of act it is about: `tool_call`."""
    condition: str | None = None
    """The CEL expression of `when`; null matches each call of the target."""
    required_clearance: int | None = None
    template: Template | None = None
    timeout_seconds: int | None = None
    """How long its approvers have."""
    reminder_seconds: int | None = None
    """So long before the deadline; 0 for never."""
    approvers: Approvers | None = None
    on_deny: OnDeny | None = None
    self_approval: bool | None = None
    final: bool = False
    """Nothing more specific loosens it."""
    channels: tuple[str, ...] | None = None
    """The only channels that carry the request, besides the dashboard."""
    quorum: Quorum | None = None
    escalation_seconds: int | None = None
    """So long before the deadline; 0 for never."""
    escalate_to: tuple[Approvers, ...] | None = None
    """Where null: the approvers of the next levels up."""
    standing: bool | None = None
    reason: str | None = None
    """Why it is there, in its steward's words: shown to approvers, and to the agent with a denial."""
    named: tuple[UUID, ...] | None = None
    """Only in a row of a request: the members who are asked."""
    action: str | None = None
    """Only in a row of a request: what is to happen, in one line."""
    details: Mapping[str, Any] | None = field(default=None, hash=False)
    """Only in a row of a request: what its approvers see besides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicySet:
    """All rows that hold for an org, in the order of their files."""

    version: str = "0.0"
    """Of the org's rows and of the platform's, with a dot between."""
    platform: tuple[PolicyRow, ...] = ()
    org: tuple[PolicyRow, ...] = ()
    teams: Mapping[UUID, tuple[PolicyRow, ...]] = field(default_factory=dict)
    confirmed: Mapping[tuple[str, str, str], Confirmed] = field(default_factory=dict)
    """What stewards confirmed about tools, by app, name and digest."""


def stricter(one: PolicyVerdict, other: PolicyVerdict) -> PolicyVerdict:
    return one if STRICTNESS[one] >= STRICTNESS[other] else other


def stricter_quorum(one: Quorum, other: Quorum) -> Quorum:
    """What fulfils both."""
    if one == other:
        return one
    roles: dict[Role, int] = {}
    for role_votes in (*one.roles, *other.roles):
        roles[role_votes.role] = max(roles.get(role_votes.role, 0), role_votes.votes)
    return Quorum(
        votes=max(one.votes, other.votes),
        roles=tuple(RoleVotes(role=role, votes=votes) for role, votes in sorted(roles.items())),
    )


class PolicyVerdict(StrEnum):
    """What policies say about a call."""

    ALLOW = "allow"
    DENY = "deny"
    REQUIRES_APPROVAL = "requires_approval"


STRICTNESS = {PolicyVerdict.ALLOW: 0, PolicyVerdict.REQUIRES_APPROVAL: 1, PolicyVerdict.DENY: 2}
FIRST_PLATFORM_ROWS = (
    PolicyRow(
        name="critical-needs-approval", target="*", effect=PolicyVerdict.REQUIRES_APPROVAL, condition='risk == "critical"',
        required_clearance=0, template=Template.CRITICAL_PATH, final=True,
    ),
)  # fmt: skip
"""The platform's rows of a new plane, as its first migration writes them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Considered:
    """One row that the walk looked at."""

    level: Level
    name: str
    """The name of the policy."""
    target: str
    effect: PolicyVerdict
    matched: bool
    """Whether it counts as a match."""
    reason: str
    """Why it matches, or does not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limited:
    """What a limit did."""

    level: Level
    name: str
    """The name of the policy."""
    why: str
    """Why it limits."""
    changes: list[str]
    """Empty: it changed nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    version: str
    """The numbers of the org's and of the platform's policies, with a dot between."""
    considered: list[Considered]
    """The policies that were looked at, in order."""
    decided_by: str
    """The row that the walk ended with, before limits."""
    limits: list[Limited]
    """The policies that limited the verdict or its terms."""
    decision: PolicyDecision
    """The verdict, and the terms where a person decides."""
    origins: dict[str, str]
    """Where each of the terms comes from."""


ONE_HUMAN = (
    "one of them enrolled or promoted the other, or set up the connection that the vote came through, and nothing proved that"
    " they are two when it was given"
)
"""Why a vote does not add to a quorum."""


class HumanVote(Protocol):
    @property
    def behind(self) -> Sequence[UUID]:
        """Everybody who could be the human behind it, whoever gave it first."""
        ...


V = TypeVar("V", bound=HumanVote)


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedVote:
    """A yes to the version that is there, by somebody who could still give it, with the roles that they have now."""

    member_id: UUID
    roles: frozenset[Role]
    behind: Sequence[UUID] = ()
    answer: str | None = None
    """What it says about an uncertain call."""


def independent(votes: Sequence[V]) -> list[V]:
    """Votes of which no two could come from one human, of ``votes`` in the order in which they were given. Those that
    only one person can have given come first: so one more vote never makes the number smaller. The number is never
    larger than that of the humans who must have voted."""
    result: list[V] = []
    seen: set[UUID] = set()
    for vote in sorted(votes, key=lambda vote: len(vote.behind) > 1):
        if seen.isdisjoint(vote.behind):
            result.append(vote)
            seen.update(vote.behind)
    return result


def is_reached(quorum: Quorum, votes: Sequence[CountedVote]) -> bool:
    """Whether these votes are enough."""
    return len(independent(votes)) >= quorum.votes and all(
        len(independent([vote for vote in votes if role_votes.role in vote.roles])) >= role_votes.votes
        for role_votes in quorum.roles
    )


def is_met(quorum: Quorum, roles_of_voters: Sequence[frozenset[Role]]) -> bool:
    """Whether these people could be enough: each of them may still prove to be a human of their own."""
    return len(roles_of_voters) >= quorum.votes and all(
        sum(role_votes.role in roles for roles in roles_of_voters) >= role_votes.votes for role_votes in quorum.roles
    )


class ChangeAction(StrEnum):
    """What a request about a change would do; its requests have this in the place of a tool's name."""

    PUBLISH_ATLAS = "atlas.publish"
    APPLY_POLICIES = "policy.apply"


ACTION_TYPES = {ChangeAction.PUBLISH_ATLAS: "atlas_publish", ChangeAction.APPLY_POLICIES: "policy_apply"}
POLICIES = "policies"
"""The target of a change of the org's policies."""
SHOWN_DECIDERS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingChange:
    """A change that holds once somebody approves it."""

    approval_id: UUID
    deciders: list[str]
    """Names of members who could decide it; at most twenty."""
    deadline: datetime
    """Nobody decided by then: nothing changes."""
    created: bool
    """False: the same change was proposed before, and waits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeDraft:
    """A change as it is proposed."""

    action: ChangeAction
    target: str
    summary: str
    question: str
    """What its approvers are asked."""
    rule: str
    """Why it is asked."""
    approvers: Approvers
    arguments: Mapping[str, Any]
    """What approvers see and decide: what would hold, how it differs, and what it would have changed."""
    source: str
    name: str
    digest: str
    base: str | None
    note: str | None = None

    @property
    def input_hash(self) -> str:
        return hashlib.sha256(canonical(self.arguments)).hexdigest()

    @property
    def terms(self) -> Terms:
        """Whoever proposed it does not approve it, and a message alone does not decide it."""
        times = TEMPLATES[Template.FULL_PIPELINE]
        return Terms(
            template=Template.FULL_PIPELINE, required_clearance=0, timeout_seconds=times.timeout_seconds,
            reminder_seconds=times.reminder_seconds, approvers=self.approvers, on_deny=OnDeny.CONTINUE, self_approval=False,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredChange:
    """A change as its row keeps it."""

    source: str
    name: str
    digest: str
    base: str | None
    note: str | None
    proposed_by: str
    proposed_by_id: UUID


@dataclass(frozen=True, slots=True)
class Author:
    """Who becomes the author of a version."""

    name: str
    identity: UUID
