"""Writes the generated parts of the docs: diagrams, the access table, the requirements. `--check` only compares.

What a table in the code says is said once: the docs are drawn from it, and a test fails when they differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from tests.acceptance.requirements import REQUIREMENTS, proofs

from cortex_plane.approvals.model import approvals
from cortex_plane.http.app import openapi_document
from cortex_plane.jobs.model import jobs
from cortex_plane.sessions.model import events, sessions
from cortex_plane.tenancy.model.access import (
    BY_NAME,
    GRANTS,
    NEVER_SERVICES,
    PERSONS_ONLY,
    PLATFORM_ONLY,
    SERVICES_ONLY,
    Permission,
)
from cortex_plane.tenancy.model.orgs import Role

ROOT = Path(__file__).parent.parent


S = TypeVar("S", bound=StrEnum)


def state_diagram(transitions: Mapping[S, Mapping[S, str]], initial: S) -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {initial}"]
    for old, targets in transitions.items():
        lines += [f"    {old} --> {new} : {why}" for new, why in targets.items()]
        if not targets:
            lines.append(f"    {old} --> [*]")
    return "\n".join([*lines, "```"])


def access_table() -> str:
    lines = [
        "# Who may do what",
        "",
        "One table in the code (`tenancy/model/access.py`) decides; a test tries every route with every role. `●` may,",
        "`○` may for what is their own. A browser session acts as its member, with the roles and the clearance that they have",
        "at that moment: the pages of the [dashboard](../guides/dashboard.md) call the same operations, and so obey the same table.",
        "",
        f"| route | permission | {' | '.join(Role)} |",
        f"|---|---|{'|'.join(':-:' for _ in Role)}|",
    ]
    notes = set()
    for path, operations in openapi_document()["paths"].items():
        for method, operation in operations.items():
            if "x-permission" not in operation:
                continue
            permission = Permission(operation["x-permission"])
            mark = ""
            if permission in SERVICES_ONLY:
                mark = " ¹"
                notes.add(
                    "¹ Service keys with such a role only: nobody speaks for others with a person's key."
                )
            if permission in PERSONS_ONLY:
                mark = " ³"
                notes.add(
                    "³ People only: neither service keys nor platform admins in an org that is not theirs."
                )
            if permission is Permission.APPROVAL_DECIDE:
                mark = " ⁴"
                notes.add(
                    "⁴ Who may decide is asked of [each request](../guides/approvals.md); guests and service keys never may."
                )
            if permission in BY_NAME:
                mark = " ⁵"
                notes.add(
                    "⁵ A service key needs this permission by name (`cortex key create --service --permission`); no role gives it."
                )
            if permission in NEVER_SERVICES:
                mark = " ⁶"
                notes.add("⁶ Never for service keys.")
            if operation.get("security") == []:
                mark = " ⁷"
                notes.add("⁷ Needs no key: what it takes in its body is one person's, and works once.")
            if permission in PLATFORM_ONLY:
                mark = " ²"
                notes.add("² Platform keys only.")
            cells = " | ".join(_cell(permission, role) for role in Role)
            lines.append(f"| `{method.upper()} {path}`{mark} | {permission} | {cells} |")
    return "\n".join([*lines, "", *sorted(notes), ""])


_OWN = {
    Permission.SESSION_READ, Permission.SESSION_WRITE, Permission.SESSION_TERMINATE, Permission.JOB_READ,
    Permission.JOB_SUBMIT, Permission.JOB_STEER, Permission.APPROVAL_READ, Permission.APPROVAL_DECIDE,
}  # fmt: skip


def _cell(permission: Permission, role: Role) -> str:
    if role not in GRANTS[permission]:
        return ""
    return "○" if permission in _OWN and role in (Role.MEMBER, Role.GUEST) else "●"


def events_table() -> str:
    lines = ["| event | what it tells | its data |", "|---|---|---|"]
    for kind, carries in events.CARRIES.items():
        lines.append(
            f"| `{kind}` | {carries.meaning} | {', '.join(f'`{name}`' for name in carries.fields)} |"
        )
    return "\n".join(lines)


def requirements_table() -> str:
    lines = [
        "# Requirements",
        "",
        "What the specs ask for, as far as it is built, and the tests that prove it. Written from",
        "`tests/acceptance/requirements.py` and the tests' `proves` marks; a test checks both directions.",
        "",
        "| id | requirement | proven by |",
        "|---|---|---|",
    ]
    proven = proofs()
    for requirement in REQUIREMENTS:
        tests = "<br>".join(f"`{test}`" for test in proven.get(requirement.id, []))
        lines.append(f"| {requirement.id} | {requirement.text} | {tests} |")
    return "\n".join([*lines, ""])


def filled(page: str, name: str, content: str) -> str:
    """The page with what stands between the marks of ``name`` replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{content}\n{end}{after}"


def pages() -> Iterable[tuple[Path, str]]:
    concepts = ROOT / "docs" / "start" / "concepts.md"
    text = concepts.read_text()
    text = filled(text, "session-diagram", state_diagram(sessions.TRANSITIONS, sessions.INITIAL))
    text = filled(text, "job-diagram", state_diagram(jobs.TRANSITIONS, jobs.INITIAL))
    yield concepts, text
    deciding = ROOT / "docs" / "guides" / "approvals.md"
    lives = state_diagram(approvals.TRANSITIONS, approvals.ApprovalStatus.PENDING)
    yield deciding, filled(deciding.read_text(), "approval-diagram", lives)
    watching = ROOT / "docs" / "reference" / "events.md"
    yield watching, filled(watching.read_text(), "events", events_table())
    yield ROOT / "docs" / "reference" / "access.md", access_table()
    yield ROOT / "docs" / "reference" / "requirements.md", requirements_table()


def outdated() -> list[Path]:
    return [path for path, text in pages() if not path.exists() or path.read_text() != text]


def main() -> int:
    if "--check" in sys.argv:
        stale = outdated()
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run `make docs`")
        return 1 if stale else 0
    for path, text in pages():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
