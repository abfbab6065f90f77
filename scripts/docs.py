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
from cortex_plane.http.routes import openapi_document
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
        "One table in the code decides, and a test calls every route with every role. A role in parentheses is limited to its own",
        "sessions, jobs and requests. The [dashboard](../guides/dashboard.md) applies the same permissions.",
        "",
        "| permission | roles | routes |",
        "|---|---|---|",
    ]
    rows: dict[tuple[Permission, str], dict[str, list[str]]] = {}
    for path, operations in openapi_document()["paths"].items():
        for method, operation in operations.items():
            if "x-permission" in operation:
                permission = Permission(operation["x-permission"])
                mark = _mark(permission, public=operation.get("security") == [])
                rows.setdefault((permission, mark), {}).setdefault(path, []).append(method.upper())
    order = list(Permission)
    for permission, mark in sorted(rows, key=lambda row: (order.index(row[0]), row[1])):
        paths = rows[permission, mark]
        routes = "<br>".join(f"`{', '.join(methods)} {path}`" for path, methods in paths.items())
        lines.append(f"| {permission}{mark and f' {mark}'} | {_roles(permission)} | {routes} |")
    marks = {mark for _, mark in rows}
    return "\n".join([*lines, "", *(f"- {mark} {note}" for mark, note in NOTES.items() if mark in marks), ""])


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


def _roles(permission: Permission) -> str:
    if GRANTS[permission] == set(Role) and permission not in _OWN:
        return "all"
    return ", ".join(
        f"({role})" if permission in _OWN and role in (Role.MEMBER, Role.GUEST) else str(role)
        for role in Role
        if role in GRANTS[permission]
    )


def events_table() -> str:
    lines = ["| event | what it tells | its data |", "|---|---|---|"]
    for kind in events.EventType:
        lines.append(f"| `{kind}` | {kind.meaning} | {', '.join(f'`{name}`' for name in kind.fields)} |")
    return "\n".join(lines)


SPECS = {
    "S0": "Jobs",
    "S1": "Checkpoints",
    "S2": "Agents, identities, sessions",
    "S3": "Pause and resume of tool calls",
    "S4": "Control plane and approvals",
    "S5": "Gates",
}


def requirements_table() -> str:
    """Requirements of the specs with the modules that prove them."""
    lines = [
        "# Requirements",
        "",
        "Each requirement is proven by a test with the mark `proves`, or *missing*. The ledger is `tests/acceptance/requirements.py`;",
        "`tests/acceptance/headings.py` has the requirements of each heading of the specs. A test checks that no requirement lacks a test",
        "without saying so, and no mark lacks a requirement. Modules are relative to `tests/`.",
    ]
    modules = {id: sorted({_module(test) for test in tests}) for id, tests in proofs().items()}
    for spec, title in SPECS.items():
        lines += ["", f"## {spec}: {title}", ""]
        for requirement in REQUIREMENTS:
            if requirement.id.startswith(f"{spec}."):
                proven_by = ", ".join(f"`{module}`" for module in modules.get(requirement.id, [])) or "*missing*"
                lines.append(f"- {requirement.id}: {requirement.text} ({proven_by})")
    design = [requirement for requirement in REQUIREMENTS if requirement.id.startswith("D.")]
    lines += ["", "## Design", "", f"The ledger lists {len(design)} more requirements, D.1 to {design[-1].id}."]
    return "\n".join([*lines, ""])


OPERATIONS = ROOT / "tests" / "http" / "operation_ids.txt"


def operation_ids() -> str:
    """The operation ids of the API. New ones are added; what is listed stays, so that the test names an id that is gone."""
    ids = {entry["operationId"] for operations in openapi_document()["paths"].values() for entry in operations.values()}
    listed = OPERATIONS.read_text().split() if OPERATIONS.exists() else []
    return "\n".join([*sorted(ids.union(listed)), ""])


def _module(test: str) -> str:
    return test.partition("::")[0].removeprefix("tests/")


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
    yield OPERATIONS, operation_ids()


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
