"""Terms in words, as an explanation and a simulation show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortex_plane.kernel.canonical import canonical
from cortex_plane.policies.model.policies import Approvers, Quorum
from cortex_plane.policies.model.quorums import quorum_said

_NEVER = frozenset({"reminder_seconds", "escalation_seconds"})
MAX_SHOWN = 200


def term_said(name: str, value: Any) -> str:
    """One term, short."""
    match value:
        case None:
            return {"channels": "all", "named": "anybody of them"}.get(
                name, "never" if name in _NEVER else "none"
            )
        case bool():
            return "yes" if value else "no"
        case Approvers():
            return approvers_said(value)
        case Quorum():
            return quorum_said(value)
        case tuple():
            return _tuple_said(name, value)
        case Mapping():
            text = canonical(dict(value)).decode()
            return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    return str(value)


def _tuple_said(name: str, values: tuple[Any, ...]) -> str:
    if name == "escalations":
        return ", then ".join(map(approvers_said, values)) or "nobody"
    if name == "channels":
        return ", ".join(values) or "the dashboard alone"
    return ", ".join(map(str, values))


def approvers_said(approvers: Approvers) -> str:
    parts = ["the session's owner"] if approvers.owner else []
    parts += [f"role {role}" for role in approvers.roles]
    parts += [f"member {id}" for id in approvers.members]
    return ", ".join(parts) or "nobody"
