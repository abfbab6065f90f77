"""`cortex policy`: apply, show, simulate and explain policies."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from cortex_plane.cli import terminal
from cortex_plane.cli.plane import harmless, run
from cortex_plane.cli.terminal import AsJson, add_command, say, show_record
from cortex_plane.client import Client
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import Risk
from cortex_plane.policies import routes
from cortex_plane.policies.model import versions
from cortex_plane.policies.model.policies import PolicyRow, Terms
from cortex_plane.policies.model.versions import DEFAULT_CALLS, MAX_CALLS
from cortex_plane.policies.rules.terms import approvers_said, term_said

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
policy_app = typer.Typer(no_args_is_help=True, help="Policies: which calls are allowed, denied, or need a person.")

File = Annotated[Path, Argument(exists=True, dir_okay=False, allow_dash=True, help="YAML; - reads stdin.")]
DryRun = Annotated[bool, Option("--dry-run", help="Only say what would change.")]
Merge = Annotated[bool, Option("--merge", help="Keep the policies that are not in the file.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Remove the policies that are not in the file without asking.")]
Note = Annotated[str | None, Option(help="For the audit trail.")]
Expect = Annotated[int | None, Option(min=0, help="Refuse if another version holds by now.")]
Apply = Callable[[Client, versions.PolicyFile], Awaitable[versions.Applied]]
ReadVersion = Callable[[Client], Awaitable[int]]


def _add_apply(app: typer.Typer, apply: Apply, read_version: ReadVersion, about: str) -> None:
    @app.command("apply", help=about)
    def apply_policies(
        file: File,
        dry_run: DryRun = False,
        merge: Merge = False,
        yes: Yes = False,
        note: Note = None,
        expect: Expect = None,
        as_json: AsJson = False,
    ) -> None:
        text = terminal.read_text(file)
        draft = versions.PolicyFile(text=text, dry_run=dry_run, note=note, expected_version=expect, merge=merge)
        if not (dry_run or merge or yes):
            can_ask = str(file) != "-" and sys.stdin.isatty()
            draft = _confirm_removal(draft, apply, read_version, can_ask=can_ask)
        show_record(lambda plane: apply(plane, draft), as_json, _show_applied)


async def _org_version(plane: Client) -> int:
    return (await plane.policies.get()).version


_add_apply(
    policy_app, lambda plane, draft: plane.policies.apply(draft), _org_version,
    "Make the org's policies those of a file. What is not in the file is gone, after a question; every version is kept.",
)  # fmt: skip


def _confirm_removal(
    draft: versions.PolicyFile, apply: Apply, read_version: ReadVersion, *, can_ask: bool
) -> versions.PolicyFile:
    """The same file, to be applied to the version with which it was compared."""

    async def compare(plane: Client) -> tuple[versions.PolicyFile, versions.PolicyDiff]:
        version = draft.expected_version
        if version is None:
            version = await read_version(plane)
        expecting = replace(draft, expected_version=version)
        return expecting, (await apply(plane, replace(expecting, dry_run=True))).diff

    expecting, diff = run(compare)
    if diff.removed:
        removed = [change for change in diff.changes if change.change == "removed"]
        lines = [_change_line(change) for change in removed]
        if diff.removed > len(lines):
            lines.append(f"… and {diff.removed - len(lines)} more")
        count = "1 policy that holds" if diff.removed == 1 else f"{diff.removed} policies that hold"
        message = "\n".join([f"The file does not have {count} now:", *lines])
        if not can_ask:
            raise InvalidInput(message, hint="Nothing was changed. Add --merge to keep them, or --yes to remove them.")
        typer.echo(message, err=True)
        typer.confirm("Remove them? (--merge keeps them)", abort=True, err=True)
    return expecting


add_command(policy_app, "list", routes.LIST_POLICY_VERSIONS, "The versions that were applied, newest first.")


@policy_app.command("show")
def show_policies(
    version: Annotated[int | None, Option(min=0, help="The one that holds now if left out.")] = None,
    source: Annotated[bool, Option("--source", help="Print the file as it was applied.")] = False,
    as_json: AsJson = False,
) -> None:
    """The policies of a version, in the order in which they are tried."""

    def show(policies: versions.PolicyVersionDetails) -> None:
        if source:
            sys.stdout.write(policies.source)
            return
        who = f", applied by {harmless(policies.applied_by)}" if policies.applied_by else ""
        say(f"version {policies.version}: {policies.total} policies{who}")
        rows = [
            _policy_row(f"team {entry.team}" if entry.team else str(entry.level), entry.row) for entry in policies.rows
        ]
        terminal.print_table([*rows, *(_policy_row("platform", row) for row in policies.platform)])
        if policies.total > len(policies.rows):
            say(f"the first {len(policies.rows)} of them; --source prints the whole file")

    show_record(lambda plane: plane.policies.get(version), as_json, show)


@policy_app.command("simulate")
def simulate_policies(
    file: File,
    since: Annotated[str, Option(help="How far back: 12h, 7d; or a time such as 2026-01-31T12:00Z.")] = "7d",
    until: Annotated[str | None, Option(help="A time; now if left out.")] = None,
    limit: Annotated[
        int, Option(min=1, max=MAX_CALLS, help="How many calls at most, the newest first.")
    ] = DEFAULT_CALLS,
    as_json: AsJson = False,
) -> None:
    """What a file would change about the calls of the last days. Nothing is applied, and nothing recorded."""
    seconds = _seconds(since)
    request = versions.SimulationRequest(
        text=terminal.read_text(file),
        since=None if seconds is not None else _moment("--since", since),
        within_seconds=seconds,
        until=None if until is None else _moment("--until", until),
        limit=limit,
    )
    show_record(lambda plane: plane.policies.simulate(request), as_json, _show_simulation)


@policy_app.command("explain")
def explain_call(
    agent: str,
    tool: str,
    args: Annotated[str, Option(help="The call's arguments: a JSON object.")] = "{}",
    risk: Annotated[Risk | None, Option(help="As published if left out.")] = None,
    read_only: Annotated[bool | None, Option("--read-only/--side-effects", help="As published.")] = None,
    as_json: AsJson = False,
) -> None:
    """What would be said about a call, and why: the walk through the levels, row by row."""
    arguments = terminal.parse_json(args, "--args is not valid JSON")
    if not isinstance(arguments, dict):
        raise InvalidInput("--args is not a JSON object.", hint=terminal.QUOTE_JSON)
    request = versions.ExplainRequest(agent=agent, tool=tool, arguments=arguments, risk=risk, read_only=read_only)
    show_record(lambda plane: plane.policies.explain(request), as_json, _show_explanation)


platform_app = typer.Typer(no_args_is_help=True, help="What holds for every org of the plane. Needs a platform key.")
platform_policy_app = typer.Typer(no_args_is_help=True, help="The policies that limit every org.")
platform_app.add_typer(platform_policy_app, name="policy")


async def _platform_version(plane: Client) -> int:
    return (await plane.platform.get_policies()).version


_add_apply(
    platform_policy_app, lambda plane, draft: plane.platform.apply_policies(draft), _platform_version,
    "Make the platform's policies those of a file. What is not in the file is gone in every org, after a question.",
)  # fmt: skip


@platform_policy_app.command("show")
def show_platform_policies(as_json: AsJson = False) -> None:
    """The policies that limit every org, in the order in which they are tried."""

    def show(policies: versions.PlatformPolicies) -> None:
        say(f"version {policies.version}: {len(policies.rows)} policies")
        terminal.print_table([_policy_row("platform", row) for row in policies.rows])

    show_record(lambda plane: plane.platform.get_policies(), as_json, show)


def _show_applied(result: versions.Applied) -> None:
    diff = result.diff
    terminal.print_warnings(result.warnings)
    terminal.print_changes(diff, _change_line)
    counts = f"{diff.added} added, {diff.removed} removed, {diff.changed} changed"
    if result.waits is not None:
        say(f"{counts}; version {result.version} holds until somebody approves this")
        terminal.print_waiting(result.waits)
    elif not result.changed:
        say(f"nothing changes: version {result.version} holds")
    elif result.dry_run:
        say(f"dry run: {counts}; it would become version {result.version}")
    else:
        say(f"applied: {counts}; version {result.version} holds now")


def _change_line(change: versions.RowChange) -> str:
    mark = {"added": "+", "removed": "-"}.get(change.change, "~")
    where = f"team {change.team}" if change.team else str(change.level)
    return f"{mark} {harmless(where)}: {harmless(change.name)}"


def _policy_row(level: str, row: PolicyRow) -> dict[str, Any]:
    parts = [str(row.template)] if row.template else []
    if row.required_clearance is not None:
        parts.append(f"clearance {row.required_clearance}")
    if row.timeout_seconds is not None:
        parts.append(f"within {_time(row.timeout_seconds)}")
    if row.approvers is not None:
        parts.append(f"by {approvers_said(row.approvers)}")
    if row.quorum is not None:
        parts.append(f"quorum {row.quorum.in_words()}")
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
    return {
        "level": level, "name": row.name, "target": row.target, "when": row.condition, "effect": str(row.effect),
        "terms": ", ".join(parts), "reason": row.reason,
    }  # fmt: skip


def _show_explanation(answer: versions.Explained) -> None:
    walk = answer.explanation
    kind = "read-only" if answer.read_only else "has side effects"
    publisher = "" if answer.published else ", published by no worker"
    properties = f"{kind}, {answer.risk} risk{publisher}"
    terminal.print_line(f"{harmless(answer.tool)} of {answer.agent} ({properties}), policies {walk.version}")
    if walk.considered:
        rows = [
            {
                "level": str(step.level), "policy": step.name, "target": step.target, "effect": str(step.effect),
                "matched": "yes" if step.matched else "no", "why": step.reason,
            }
            for step in walk.considered
        ]  # fmt: skip
        terminal.print_table(rows)
    else:
        terminal.print_line("no policy is about this tool")
    terminal.print_line(f"decided by {harmless(walk.decided_by)}")
    for limit in walk.limits:
        changes = "; ".join(limit.changes) or "changes nothing"
        terminal.print_line(f"limit {limit.level}:{harmless(limit.name)} ({limit.why}): {harmless(changes)}")
    terminal.print_line(f"verdict: {walk.decision.verdict} by {harmless(walk.decision.rule)}")
    if walk.decision.reason:
        terminal.print_line(f"reason: {harmless(walk.decision.reason)}")
    if walk.decision.terms is not None:
        values = {name: _term_value(name, getattr(walk.decision.terms, name)) for name in Terms.__slots__}
        terminal.print_table(
            [
                {"term": _term_name(name), "value": value, "source": walk.origins.get(name, "default")}
                for name, value in values.items()
            ]
        )


def _term_name(name: str) -> str:
    return name.removesuffix("_seconds").replace("_", " ")


def _term_value(name: str, value: Any) -> str:
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


def _show_simulation(simulation: versions.Simulation) -> None:
    terminal.print_warnings(simulation.warnings)
    if simulation.groups:
        terminal.print_table([_simulation_row(group) for group in simulation.groups])
    hidden = simulation.total_groups - len(simulation.groups)
    if hidden > 0:
        terminal.print_line(f"… and {hidden} more kinds of changes")
    totals = simulation.totals
    span = f"from {terminal.utc_text(simulation.since)} to {terminal.utc_text(simulation.until)}"
    terminal.print_line(f"{totals.looked_at} calls {span}, compared with policies {simulation.version}")
    if simulation.stopped and simulation.oldest is not None:
        terminal.print_line(
            f"stopped at {terminal.utc_text(simulation.oldest)}: there are more calls; --limit takes more of them"
        )
    if totals.unknown:
        terminal.print_line(f"{totals.unknown} of them named no tool that is known, or arguments that do not fit it")
    if totals.drifted:
        terminal.print_line(f"{totals.drifted} of them were judged otherwise then than by the policies of now")
    for text in simulation.left_out:
        terminal.print_line(f"not looked at: {text}")
    if totals.other_rule:
        terminal.print_line(f"{totals.other_rule} of the unchanged are decided by another policy, with the same result")
    say(
        f"{totals.changed} would change: {totals.stricter} stricter, {totals.looser} looser,"
        f" {totals.changed - totals.stricter - totals.looser} otherwise; {totals.unchanged} unchanged"
    )


def _simulation_row(group: versions.ChangeGroup) -> dict[str, Any]:
    verdicts = [
        f"{past.calls} × {past.verdict} by {past.rule}" if past.verdict else f"{past.calls} × not recorded"
        for past in group.recorded
    ]
    return {
        "calls": group.calls,
        "tool": group.tool,
        "agent": group.agent,
        "change": str(group.direction),
        "now": f"{group.before.verdict} by {group.before.rule}",
        "then": f"{group.after.verdict} by {group.after.rule}",
        "terms": ", ".join(_term_name(name) for name in group.terms),
        "recorded": "; ".join(verdicts),
        "examples": group.examples,
    }


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
    # A time without a zone is UTC, as all times are printed.
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
