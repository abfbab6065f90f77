"""The one door: whoever wants to call a tool asks here first.

The answer becomes a row together with the intent that refers to it, so a dispatch that was not authorised cannot be
written.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from cortex_plane.domain.authorization import Decision, PolicyVerdict, SideEffects, decide
from cortex_plane.operations.verbs import new_id


@dataclass(frozen=True, slots=True)
class Authorization:
    id: UUID
    decision: Decision

    @property
    def allowed(self) -> bool:
        return self.decision.verdict is PolicyVerdict.ALLOW


def authorize(*, read_only: bool, side_effects: SideEffects) -> Authorization:
    return Authorization(new_id(), decide(read_only=read_only, side_effects=side_effects))
