"""Writes the generated parts of the docs: diagrams, the access table, events, the requirements. `--check` only compares.

Each part is drawn from a table in the code. A test fails when a page differs from its table.
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


NOTES = {
    "¹": "Service keys with such a role only.",
    "²": "Platform keys only.",
    "³": "People only: no service keys, and no platform keys in another org.",
    "⁴": "The [request](../guides/approvals.md) says who may decide it. Guests and service keys never may.",
    "⁵": "A service key needs this permission by name (`cortex key create NAME --service --permission PERMISSION`).",
    "⁶": "Never for service keys.",
    "⁷": "No key needed: the body carries a single-use token or code of one person.",
}


def access_table() -> str:
    lines = [
        "# Who may do what",
        "",
        "One table in the code decides, and a test tries every route with every role. `●` may, `○` may for their own sessions, jobs and requests.",
        "The pages of the [dashboard](../guides/dashboard.md) call the same operations with the roles of the member.",
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
            mark = _mark(permission, public=operation.get("security") == [])
            notes.add(mark)
            cells = " | ".join(_cell(permission, role) for role in Role)
            lines.append(f"| `{method.upper()} {path}`{mark and f' {mark}'} | {permission} | {cells} |")
    return "\n".join([*lines, "", *(f"- {mark} {note}" for mark, note in NOTES.items() if mark in notes), ""])


def _mark(permission: Permission, *, public: bool) -> str:
    if permission in PLATFORM_ONLY:
        return "²"
    if public:
        return "⁷"
    if permission in NEVER_SERVICES:
        return "⁶"
    if permission in BY_NAME:
        return "⁵"
    if permission is Permission.APPROVAL_DECIDE:
        return "⁴"
    if permission in PERSONS_ONLY:
        return "³"
    return "¹" if permission in SERVICES_ONLY else ""


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
    """Requirements of the specs in full; those of the design by the test module that proves them."""
    lines = [
        "# Requirements",
        "",
        "Each requirement is proven by a test with the mark `proves`. The ledger is `tests/acceptance/requirements.py`, and a test",
        "checks both directions: no requirement without a test, no mark without a requirement. Modules are relative to `tests/`.",
        "",
        "## Specifications",
        "",
        "| id | requirement | proven by |",
        "|---|---|---|",
    ]
    modules = {id: sorted({_module(test) for test in tests}) for id, tests in proofs().items()}
    for requirement in REQUIREMENTS:
        if not requirement.id.startswith("D."):
            proven_by = ", ".join(f"`{module}`" for module in modules.get(requirement.id, []))
            lines.append(f"| {requirement.id} | {requirement.text} | {proven_by} |")
    lines += [
        "",
        "## Design",
        "",
        "The ledger has the text of each id.",
        "",
        "| module | proves |",
        "|---|---|",
    ]
    numbers: dict[str, list[int]] = {}
    for id, names in modules.items():
        if id.startswith("D."):
            for name in names:
                numbers.setdefault(name, []).append(int(id.removeprefix("D.")))
    lines += [f"| `{name}` | {_ranges(sorted(numbers[name]))} |" for name in sorted(numbers)]
    return "\n".join([*lines, ""])


def _module(test: str) -> str:
    return test.partition("::")[0].removeprefix("tests/")


def _ranges(numbers: list[int]) -> str:
    """``[1, 2, 3, 7]`` as ``D.1-3, D.7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"D.{run[0]}" + (f"-{run[-1]}" if len(run) > 1 else "") for run in runs)


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
