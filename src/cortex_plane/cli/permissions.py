"""The effective permissions of a session, for a terminal."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from cortex_plane.calls.model import Permissions
from cortex_plane.cli.output import console, harmless, said, show_many, show_one


def show_permissions(found: Permissions, as_json: bool) -> None:
    if as_json:
        show_one(found, as_json)
        return
    show_many(found.actions, ["action", "state", "whom", "rule", "reason", "risk"], as_json)
    if found.more_actions:
        said(f"and {found.more_actions} more actions")
    _part("asked first", [_asking(each) for each in found.asking])
    if found.more_asking:
        said(f"  and {found.more_asking} more gates")
    _part("capabilities", [_capability(each) for each in found.capabilities])
    if found.more_capabilities:
        said(f"  and {found.more_capabilities} more")
    _part("gates that wait for an answer", [_waiting(each) for each in found.waiting])
    _part("gates that are shut", [f"{each['gate']}: {each['reason']}" for each in found.shut])
    _part("gates passed", sorted(found.passed))
    _part("told", [f"{each['id']} (by {each['by']})" for each in (*found.contexts, *found.guidance)])
    _part("limits", [_limit(each.kind, each.name, each.detail) for each in found.limits])


def _part(title: str, lines: list[str]) -> None:
    if not lines:
        return
    console().print()
    console().print(Text(title, style="dim"))
    for line in lines:
        said(f"  {harmless(line)}")


def _capability(each: dict[str, Any]) -> str:
    by = f", by {each['by']}" if each["by"] else ""
    return f"{each['id']}: {'open' if each['open'] else 'locked'}{by}"


def _asking(each: dict[str, Any]) -> str:
    return f"{each['gate']}, the {each['whom']}: {'; '.join(each['questions'])}"


def _waiting(each: dict[str, Any]) -> str:
    before = f" before {each['action']} (call {each['call']})" if each["call"] else ""
    asked = "; ".join(question["question"] for question in each["questions"])
    return f"{each['atlas']}/{each['gate']}{before}: {asked}"


def _limit(kind: str, name: str, detail: dict[str, Any]) -> str:
    told = ", ".join(f"{key} {value}" for key, value in detail.items() if value is not None)
    return f"{kind} {name}: {told}"
