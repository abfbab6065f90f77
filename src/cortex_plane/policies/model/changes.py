"""Changes of rules that wait for a person: a version of an atlas, or of the org's policies."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from cortex_plane.kernel.canonical import canonical
from cortex_plane.policies.model.policies import TEMPLATES, Approvers, OnDeny, Template, Terms


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
