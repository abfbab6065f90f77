"""`cortex policy`: apply, show, simulate and explain policies."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from cortex_plane.agents.model.tools import Risk
from cortex_plane.cli.inputs import text_of
from cortex_plane.cli.output import AsJson, Limit, harmless, said, short, show_many, show_one, tell
from cortex_plane.cli.plane import collect, run
from cortex_plane.kernel.canonical import unique
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.policies.model.policies import PolicyRow, Terms, quorum_said
from cortex_plane.policies.model.versions import (
    DEFAULT_CALLS,
    MAX_CALLS,
    Applied,
    ChangeGroup,
    Explained,
    ExplainRequest,
    PlacedRow,
    PolicyFile,
    RowChange,
    Simulation,
    SimulationRequest,
)
from cortex_plane.policies.rules.terms import approvers_said, term_said

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
policy_app = typer.Typer(
    no_args_is_help=True, help="Policies: which calls are allowed, denied, or need a person."
)

File = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, allow_dash=True, help="YAML; - reads stdin.")
]


@policy_app.command("apply")
def apply_policies(
    file: File,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    note: Annotated[str | None, typer.Option(help="For the audit trail.")] = None,
    expect: Annotated[int | None, typer.Option(min=0, help="Refuse if another version holds by now.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make the org's policies those of a file. What is not in the file is gone; every version is kept."""
    draft = PolicyFile(text=text_of(file), dry_run=dry_run, note=note, expected_version=expect)
    applied = run(lambda plane: plane.policies.apply(draft))
    if as_json:
        show_one(applied, True)
    else:
        _tell_applied(applied)


@policy_app.command("list")
def list_versions(limit: Limit = 50, as_json: AsJson = False) -> None:
    """The versions that were applied, newest first."""
    found = run(lambda plane: collect(plane.policies.versions(limit)))
    show_many(found, ["version", "rows", "applied_by", "created_at", "note", "digest"], as_json)


@policy_app.command("show")
def show_policies(
    version: Annotated[int | None, typer.Option(min=0, help="The one that holds now if left out.")] = None,
    source: Annotated[bool, typer.Option("--source", help="Print the file as it was applied.")] = False,
    as_json: AsJson = False,
) -> None:
    """The policies of a version, in the order in which they are tried."""
    found = run(lambda plane: plane.policies.get(version))
    if as_json:
        show_one(found, True)
    elif source:
        sys.stdout.write(found.source)
    else:
        who = f", applied by {harmless(found.applied_by)}" if found.applied_by else ""
        said(f"version {found.version}: {found.total} policies{who}")
        lines = [_placed_row(one) for one in found.rows] + [_platform_row(row) for row in found.platform]
        show_many(lines, ["level", "name", "target", "when", "effect", "terms"], False)
        if found.total > len(found.rows):
            said(f"the first {len(found.rows)} of them; --source prints the whole file")


@policy_app.command("simulate")
def simulate_policies(
    file: File,
    since: Annotated[
        str, typer.Option(help="How far back: 12h, 7d; or a time such as 2026-01-31T12:00Z.")
    ] = "7d",
    until: Annotated[str | None, typer.Option(help="A time; now if left out.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=MAX_CALLS, help="How many calls at most, the newest first.")
    ] = DEFAULT_CALLS,
    as_json: AsJson = False,
) -> None:
    """What a file would change about the calls of the last days. Nothing is applied, and nothing recorded."""
    seconds = _seconds(since)
    asked = SimulationRequest(
        text=text_of(file),
        since=None if seconds is not None else _moment("--since", since),
        within_seconds=seconds,
        until=None if until is None else _moment("--until", until),
        limit=limit,
    )
    simulated = run(lambda plane: plane.policies.simulate(asked))
    if as_json:
        show_one(simulated, True)
    else:
        _tell_simulated(simulated)


@policy_app.command("explain")
def explain_call(
    agent: str,
    tool: str,
    args: Annotated[str, typer.Option(help="The call's arguments: a JSON object.")] = "{}",
    risk: Annotated[Risk | None, typer.Option(help="As published if left out.")] = None,
    read_only: Annotated[
        bool | None, typer.Option("--read-only/--side-effects", help="As published.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What would be said about a call, and why: the walk through the levels, row by row."""
    asked = ExplainRequest(agent=agent, tool=tool, arguments=_object(args), risk=risk, read_only=read_only)
    explained = run(lambda plane: plane.policies.explain(asked))
    if as_json:
        show_one(explained, True)
    else:
        _tell_explained(explained)


def _tell_applied(applied: Applied) -> None:
    for warning in applied.warnings:
        tell(f"warning: {harmless(warning)}")
    for change in applied.diff.changes:
        for line in _change_lines(change):
            tell(line)
    diff = applied.diff
    hidden = diff.added + diff.removed + diff.changed - len(diff.changes)
    if hidden > 0:
        tell(f"… and {hidden} more changes")
    counts = f"{diff.added} added, {diff.removed} removed, {diff.changed} changed"
    if not applied.changed:
        said(f"nothing changes: version {applied.version} holds")
    elif applied.dry_run:
        said(f"dry run: {counts}; it would become version {applied.version}")
    else:
        said(f"applied: {counts}; version {applied.version} holds now")


def _change_lines(change: RowChange) -> list[str]:
    mark = {"added": "+", "removed": "-"}.get(change.change, "~")
    where = f"team {change.team}" if change.team else "org"
    lines = [f"{mark} {harmless(where)}: {harmless(change.name)}"]
    lines += [
        f"    {field.field}: {short(_shown(field.before), 80)} → {short(_shown(field.after), 80)}"
        for field in change.fields
    ]
    return lines


def _shown(value: Any) -> Any:
    return "–" if value is None else value


@dataclass(frozen=True, slots=True)
class _PolicyRow:
    level: str
    name: str
    target: str
    when: str | None
    effect: str
    terms: str


def _placed_row(placed: PlacedRow) -> _PolicyRow:
    level = f"team {placed.team}" if placed.team else str(placed.level)
    return _policy_row(level, placed.row)


def _platform_row(row: PolicyRow) -> _PolicyRow:
    return _policy_row("platform", row)


def _policy_row(level: str, row: PolicyRow) -> _PolicyRow:
    parts = [str(row.template)] if row.template else []
    if row.required_clearance is not None:
        parts.append(f"clearance {row.required_clearance}")
    if row.timeout_seconds is not None:
        parts.append(f"within {_time(row.timeout_seconds)}")
    if row.approvers is not None:
        parts.append(f"by {approvers_said(row.approvers)}")
    if row.quorum is not None:
        parts.append(f"quorum {quorum_said(row.quorum)}")
    if row.escalation_seconds is not None:
        when = f"{_time(row.escalation_seconds)} before" if row.escalation_seconds else "never"
        parts.append(f"escalates {when}")
    if row.escalate_to is not None:
        parts.append(f"escalates to {term_said('escalations', row.escalate_to)}")
    if row.channels is not None:
        parts.append(f"over {term_said('channels', row.channels)}")
    if row.standing is not None:
        parts.append("standing approvals" if row.standing else "no standing approvals")
    if row.on_deny is not None:
        parts.append(f"on deny {row.on_deny}")
    if row.self_approval is not None:
        parts.append("self approval" if row.self_approval else "no self approval")
    if row.final:
        parts.append("final")
    return _PolicyRow(level, row.name, row.target, row.condition, str(row.effect), ", ".join(parts))


@dataclass(frozen=True, slots=True)
class _WalkRow:
    level: str
    policy: str
    target: str
    effect: str
    matched: str
    why: str


@dataclass(frozen=True, slots=True)
class _TermRow:
    term: str
    value: str
    source: str


def _tell_explained(explained: Explained) -> None:
    walk = explained.explanation
    kind = "read-only" if explained.read_only else "has side effects"
    known = "" if explained.published else ", published by no worker"
    tell(
        f"{harmless(explained.tool)} of {explained.agent} ({kind}, {explained.risk} risk{known}), policies {walk.version}"
    )
    if walk.considered:
        rows = [
            _WalkRow(
                str(one.level),
                one.name,
                one.target,
                str(one.effect),
                "yes" if one.matched else "no",
                one.reason,
            )
            for one in walk.considered
        ]
        show_many(rows, ["level", "policy", "target", "effect", "matched", "why"], False)
    else:
        tell("no policy is about this tool")
    tell(f"decided by {harmless(walk.decided_by)}")
    for limit in walk.limits:
        changes = "; ".join(limit.changes) or "changes nothing"
        tell(f"limit {limit.level}:{harmless(limit.name)} ({limit.why}): {harmless(changes)}")
    tell(f"verdict: {walk.decision.verdict} by {harmless(walk.decision.rule)}")
    if walk.decision.terms is not None:
        show_many(_term_rows(walk.decision.terms, walk.origins), ["term", "value", "source"], False)


def _term_rows(terms: Terms, origins: dict[str, str]) -> list[_TermRow]:
    return [
        _TermRow(
            name.removesuffix("_seconds").replace("_", " "),
            _value(name, getattr(terms, name)),
            origins.get(name, "default"),
        )
        for name in Terms.__slots__
    ]


def _value(name: str, value: Any) -> str:
    if name.endswith("_seconds") and value:
        return _time(value) if name == "timeout_seconds" else f"{_time(value)} before"
    return term_said(name, value)


def _time(seconds: int) -> str:
    parts = []
    for unit, size in _UNITS.items():
        amount, seconds = divmod(seconds, size)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"


@dataclass(frozen=True, slots=True)
class _SimulationRow:
    calls: int
    tool: str
    agent: str
    change: str
    now: str
    then: str
    terms: str
    recorded: str
    examples: list[UUID]


def _tell_simulated(simulated: Simulation) -> None:
    for warning in simulated.warnings:
        tell(f"warning: {harmless(warning)}")
    columns = ["calls", "tool", "agent", "change", "now", "then", "terms", "recorded", "examples"]
    if simulated.groups:
        show_many([_simulation_row(group) for group in simulated.groups], columns, False)
    hidden = simulated.total_groups - len(simulated.groups)
    if hidden > 0:
        tell(f"… and {hidden} more kinds of changes")
    totals = simulated.totals
    span = f"from {_at(simulated.since)} to {_at(simulated.until)}"
    tell(f"{totals.looked_at} calls {span}, compared with policies {simulated.version}")
    if simulated.stopped and simulated.oldest is not None:
        tell(f"stopped at {_at(simulated.oldest)}: there are more calls; --limit takes more of them")
    if totals.unknown:
        tell(f"{totals.unknown} of them named no tool that is known, or arguments that do not fit it")
    if totals.drifted:
        tell(f"{totals.drifted} of them were judged otherwise then than by the policies of now")
    if totals.other_rule:
        tell(f"{totals.other_rule} of the unchanged are decided by another policy, with the same result")
    said(
        f"{totals.changed} would change: {totals.stricter} stricter, {totals.looser} looser,"
        f" {totals.changed - totals.stricter - totals.looser} otherwise; {totals.unchanged} unchanged"
    )


def _simulation_row(group: ChangeGroup) -> _SimulationRow:
    recorded = [
        f"{each.calls} × {each.verdict} by {each.rule}" if each.verdict else f"{each.calls} × not recorded"
        for each in group.recorded
    ]
    return _SimulationRow(
        group.calls,
        group.tool,
        group.agent,
        str(group.direction),
        f"{group.before.verdict} by {group.before.rule}",
        f"{group.after.verdict} by {group.after.rule}",
        ", ".join(name.removesuffix("_seconds").replace("_", " ") for name in group.terms),
        "; ".join(recorded),
        group.examples,
    )


def _at(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _seconds(text: str) -> int | None:
    """A duration such as 7d or 1d12h; None where it is something else."""
    if not re.fullmatch(r"(?:[0-9]{1,7}[smhd])+", text):
        return None
    return sum(int(amount) * _UNITS[unit] for amount, unit in re.findall(r"([0-9]+)([smhd])", text))


def _moment(option: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{option} is neither a duration nor a time: {text[:50]}.",
            hint="Write 7d or 12h; or a time such as 2026-01-31T12:00Z.",
        ) from error
    # Without a zone it is meant as everything else is printed.
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _object(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text, object_pairs_hook=unique)
    except ValueError as error:
        raise InvalidInput(f"--args is not valid JSON: {error}.", hint="Quote it: '{\"a\": 1}'.") from error
    if not isinstance(given, dict):
        raise InvalidInput("--args is not a JSON object.", hint="Quote it: '{\"a\": 1}'.")
    return given
