"""`cortex atlas`: validate, test, publish and compare atlases."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import orjson
import typer
from rich.text import Text
from typer import Argument, Option

from cortex_plane.cli import terminal
from cortex_plane.cli.plane import EXIT_CODES, harmless, run
from cortex_plane.cli.terminal import AsJson, Limit, say, show_record, show_table
from cortex_plane.client import Client
from cortex_plane.gates import routes
from cortex_plane.gates.model.atlases import (
    AtlasDiff,
    AtlasFile,
    AtlasHandover,
    AtlasRules,
    AtlasSummary,
    AtlasVersionDetails,
    Published,
    Retired,
)
from cortex_plane.gates.model.scenarios import ScenarioOutcome, ScenarioReport, ScenarioRun, ScenarioSetting
from cortex_plane.kernel.errors import CortexError, InvalidInput

if TYPE_CHECKING:
    from cortex_plane.calls.rules.bench import BenchSetting
    from cortex_plane.gates.rules.index import CompiledAtlases
    from cortex_plane.policies.model.policies import PolicySet


atlas_app = typer.Typer(no_args_is_help=True, help="Atlases: the gates that stewards put around agents.")

AtlasPath = Annotated[Path, Argument(exists=True, dir_okay=False, allow_dash=True, help="YAML or JSON; - reads stdin.")]
AtlasId = Annotated[str, Argument(help="The id of an atlas, such as com.acme.support.")]
_MARKS = {"added": "+", "removed": "-", "changed": "~"}
_KINDS = ("gates", "capabilities", "contexts", "policies", "actions")


@atlas_app.command("publish")
def publish_atlas(file: AtlasPath, as_json: AsJson = False) -> None:
    """Make a file a version, which new sessions are bound to. The same file again changes nothing."""
    draft = AtlasFile(manifest=terminal.read_text(file), name="stdin" if str(file) == "-" else file.name[:200])
    show_record(lambda plane: plane.atlases.publish(draft), as_json, _show_published)


@atlas_app.command("list")
def list_atlases(
    atlas: Annotated[str | None, Argument(help="An atlas: its versions, newest first.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """The atlases of the org; with an id the versions of one."""
    if atlas is None:
        show_table(routes.LIST_ATLASES, lambda plane: plane.atlases.list(limit), as_json)
    else:
        show_table(routes.LIST_ATLAS_VERSIONS, lambda plane: plane.atlases.versions(atlas, limit), as_json)


@atlas_app.command("get")
def show_atlas(
    atlas: AtlasId,
    version: Annotated[str | None, Option(help="The one that holds if left out.")] = None,
    source: Annotated[bool, Option("--source", help="Print the file as it was published.")] = False,
    as_json: AsJson = False,
) -> None:
    """One version of an atlas."""

    async def get(plane: Client) -> AtlasVersionDetails:
        return await plane.atlases.get_version(atlas, version or await _current_version(plane, atlas), source=source)

    show_record(get, as_json, _print_source if source else None)


def _print_source(version: AtlasVersionDetails) -> None:
    """A file gets the source unchanged; a terminal would obey control characters in it."""
    text = version.source or ""
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)


@atlas_app.command("diff")
def diff_atlas(
    atlas: AtlasId,
    before: Annotated[str, Argument(help="A version.")],
    after: Annotated[str | None, Argument(help="Another one; the one that holds if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """What a version has otherwise than another: which gates, questions, contexts, capabilities, policies and actions."""

    async def compare(plane: Client) -> AtlasDiff:
        return await plane.atlases.diff(atlas, before, after or await _current_version(plane, atlas))

    show_record(compare, as_json, _show_diff)


@atlas_app.command("rules")
def query_atlas(
    atlas: AtlasId,
    action: Annotated[str | None, Option(help="The name of a tool, such as ticket.delete.")] = None,
    capability: Annotated[str | None, Option(help="The id of a capability.")] = None,
    version: Annotated[str | None, Option(help="The one that holds if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Which gates, capabilities and policies concern one action, or one capability."""
    if (action is None) == (capability is None):
        raise InvalidInput("Name --action or --capability.", hint="Exactly one of the two.")

    async def query(plane: Client) -> AtlasRules:
        name = version or await _current_version(plane, atlas)
        return await plane.atlases.rules(atlas, name, action=action, capability=capability)

    show_record(query, as_json, _show_rules)


@atlas_app.command("retire")
def retire_atlas(atlas: AtlasId, version: str, as_json: AsJson = False) -> None:
    """Bind no new session to a version. Those that are bound to it go on."""
    show_record(lambda plane: plane.atlases.retire(atlas, version), as_json, _show_retired)


@atlas_app.command("hand-over")
def hand_over_atlas(
    atlas: AtlasId,
    member: Annotated[UUID | None, Option(help="The id of a member.")] = None,
    team: Annotated[str | None, Option(help="The slug of a team.")] = None,
    as_json: AsJson = False,
) -> None:
    """Let an atlas belong to another member or to a team. For its owner and admins."""
    if (member is None) == (team is None):
        raise InvalidInput(
            "Say --member or --team.", hint="`cortex member list` and `cortex team list` have their ids."
        )
    handover = AtlasHandover(member_id=member, team=team)

    def show(summary: AtlasSummary) -> None:
        owner = f"the team {summary.team}" if summary.team else harmless(summary.owner or "nobody")
        say(f"{summary.atlas_id} belongs to {owner} now")

    show_record(lambda plane: plane.atlases.hand_over(atlas, handover), as_json, show)


async def _current_version(plane: Client, atlas: str) -> str:
    """The version that new sessions are bound to; where none is, the newest."""
    summary = await plane.atlases.get(atlas)
    return summary.holds or summary.newest


def _show_published(publication: Published) -> None:
    terminal.print_warnings(publication.warnings)
    version = publication.version
    name = f"{version.atlas_id} {version.version}"
    if publication.waits is not None:
        say(f"{name} does not hold yet: the atlas belongs to somebody else")
        terminal.print_waiting(publication.waits)
    elif publication.created:
        digest = version.digest[:12]
        say(f"published {name} with {version.gates} gates, digest {digest}; new sessions are bound to it")
    else:
        holds = "holds" if version.holds else "does not hold any more"
        say(f"nothing changes: {name} was published before, and {holds}")


def _show_retired(retirement: Retired) -> None:
    version = retirement.version
    name = f"{version.atlas_id} {version.version}"
    say(f"retired {name}" if retirement.changed else f"nothing changes: {name} was retired before")
    if retirement.holds is not None:
        say(f"new sessions are bound to {retirement.holds}")
        return
    say("no version holds: agents that name the atlas take no new work until one is published")
    for slug in retirement.agents:
        terminal.print_line(f"  {harmless(slug)}")


def _show_rules(rules: AtlasRules) -> None:
    if rules.declared is not None:
        terminal.print_line(f"action {rules.declared.action_id}: risk {rules.declared.risk_tier}")
    for capability in rules.capabilities:
        state = "locked at first" if capability.locked else "open"
        terminal.print_line(f"capability {capability.capability_id} ({state}): {', '.join(capability.actions)}")
    for gate in rules.gates:
        tier = f" from {gate.min_tier}" if gate.min_tier is not None else ""
        asks = f"; asks {', '.join(gate.questions)}" if gate.questions else ""
        terminal.print_line(f"gate {gate.gate} ({gate.mode}, {gate.priority}): {', '.join(gate.relations)}{tier}{asks}")
    for policy in rules.policies:
        reason = f": {harmless(policy.reason)}" if policy.reason else ""
        terminal.print_line(f"policy {policy.policy_id} ({policy.type}){reason}")
    if not (rules.gates or rules.capabilities or rules.policies):
        say("nothing in this atlas concerns it, so it is denied")


def _show_diff(diff: AtlasDiff) -> None:
    terminal.print_changes(diff, lambda change: f"{_MARKS[change.change]} {change.kind} {harmless(change.id)}")
    say(f"{diff.before} → {diff.after}: {diff.added} added, {diff.removed} removed, {diff.changed} changed")


SCENARIOS_SUFFIX = ".scenarios.yaml"
_OUTCOME_KEYS = (
    "decision", "rule", "votes", "reason", "gates", "people", "questions", "contexts", "guidance", "open", "shut",
)  # fmt: skip

AtlasPaths = Annotated[
    list[Path] | None, Argument(help="Atlas files, YAML or JSON; several are bound together.", show_default=False)
]


@atlas_app.command("test")
def run_scenarios(
    files: AtlasPaths = None,
    scenarios: Annotated[
        list[Path] | None,
        Option("--scenarios", help=f"Scenario files; if left out, those beside: NAME{SCENARIOS_SUFFIX}."),
    ] = None,
    live: Annotated[
        bool,
        Option("--live", help="Under the policies, tools and agents of the org. Without atlas files: what holds now."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Play scenarios under atlases and policies: which gates fire, what they ask, what is decided. Exits with 1 where one
    differs."""
    files = files or []
    if not files and not live:
        raise InvalidInput(
            "Name an atlas file.", hint="With --live and --scenarios the atlases of the agents are used."
        )
    outcomes = (_play_live if live else _play_offline)(files, lambda: _scenario_paths(files, scenarios))
    failures = sum(not outcome.passed for _, outcome in outcomes)
    if as_json:
        keys = ("line", "name", "passed", "faults", "found")
        _write_json([{"file": str(path), **{key: getattr(outcome, key) for key in keys}} for path, outcome in outcomes])
    else:
        for path, outcome in outcomes:
            _show_outcome(path, outcome)
        summary = f"{len(outcomes) - failures} of {len(outcomes)} are as expected"
        terminal.print_line(Text(summary, style="red" if failures else "green"))
    if failures:
        raise typer.Exit(1)


def _scenario_paths(files: Sequence[Path], paths: list[Path] | None) -> list[Path]:
    if paths:
        return paths
    beside = [file.with_suffix("").with_name(file.stem + SCENARIOS_SUFFIX) for file in files]
    existing = [path for path in beside if path.is_file()]
    if not existing:
        raise InvalidInput(
            f"There are no scenarios: {', '.join(map(str, beside)) or 'a file'} is not there.",
            hint="Write some (docs/guides/steward-bench.md), or name a file with --scenarios.",
        )
    return existing


Played = list[tuple[Path, ScenarioOutcome]]


def _play_live(files: Sequence[Path], find: Callable[[], Sequence[Path]]) -> Played:
    drafts = [AtlasFile(manifest=terminal.read_text(file), name=file.name[:200]) for file in files]
    paths = find()
    runs = [ScenarioRun(scenarios=terminal.read_text(path), name=str(path)[-200:], atlases=drafts) for path in paths]

    async def play_all(plane: Client) -> list[ScenarioReport]:
        return [await plane.atlases.test(run) for run in runs]

    reports = zip(paths, run(play_all), strict=True)
    return [(path, outcome) for path, report in reports for outcome in report.outcomes]


def _play_offline(files: Sequence[Path], find: Callable[[], Sequence[Path]]) -> Played:
    from cortex_plane.calls.rules.bench import play
    from cortex_plane.gates.files.atlases import read
    from cortex_plane.gates.files.scenarios import read as read_scenarios
    from cortex_plane.gates.rules.index import CompiledAtlases

    atlases = CompiledAtlases([read(terminal.read_text(file), name=str(file)).atlas for file in files])
    return [
        (path, play(_offline_setting(atlases, scenario.setting, path.parent), scenario))
        for path in find()
        for scenario in read_scenarios(terminal.read_text(path), name=str(path))
    ]


def _offline_setting(atlases: CompiledAtlases, setting: ScenarioSetting, folder: Path) -> BenchSetting:
    """``folder``: of the scenario file."""
    from cortex_plane.calls.rules.bench import BenchSetting
    from cortex_plane.policies.rules.engine import CompiledPolicies

    policies, teams = _read_policies(None if setting.policies is None else folder / setting.policies, setting.teams)
    return BenchSetting(
        atlases=atlases, policies=CompiledPolicies(policies), agent=setting.agent or "agent", teams=teams,
        session_kind=setting.session_kind, tools=setting.tools,
    )  # fmt: skip


@functools.cache
def _read_policies(file: Path | None, teams: tuple[str, ...]) -> tuple[PolicySet, list[UUID]]:
    """Most scenarios of a file name the same."""
    from cortex_plane.policies.files import read_alone

    try:
        return read_alone(None if file is None else terminal.read_text(file), teams)
    except InvalidInput as error:
        raise InvalidInput(f"{file}: {error.message}", code=error.code, hint=error.hint) from error


def _show_outcome(path: Path, outcome: ScenarioOutcome) -> None:
    mark = ("✓", "green") if outcome.passed else ("✗", "red")
    terminal.print_line(Text.assemble(mark, f" {harmless(outcome.name)}"))
    if outcome.passed:
        return
    terminal.print_line(Text(f"    {harmless(str(path))}:{outcome.line}", style="dim"))
    for fault in outcome.faults:
        terminal.print_line(f"    {harmless(fault)}")
    for name in _OUTCOME_KEYS:
        value = outcome.found.get(name)
        if value:
            text = ", ".join(value) if isinstance(value, list) else str(value)
            terminal.print_line(Text(f"      {name}: {harmless(text)}", style="dim"))


@atlas_app.command("validate")
def validate_atlases(
    files: Annotated[list[Path], Argument(help="YAML or JSON; - reads stdin.")],
    strict: Annotated[bool, Option("--strict", help="Warnings are faults too: exit with 1.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read atlas files without a plane: what is wrong, line by line, and what is probably not meant."""
    results = [_validate_file(file) for file in files]
    if as_json:
        _write_json(results)
    else:
        for result in results:
            _show_validation(result)
    if not all(result["ok"] for result in results):
        raise typer.Exit(EXIT_CODES[InvalidInput])
    if strict and any(result["warnings"] for result in results):
        raise typer.Exit(1)


@atlas_app.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of atlas files, for editors."""
    from cortex_plane.gates.model.atlases import schema

    _write_json(schema(), orjson.OPT_INDENT_2)


def _write_json(value: Any, option: int = 0) -> None:
    sys.stdout.buffer.write(orjson.dumps(value, option=option | orjson.OPT_APPEND_NEWLINE))


def _validate_file(file: Path) -> dict[str, Any]:
    from cortex_plane.gates.files.atlases import read  # only this command needs the reader

    name = "stdin" if str(file) == "-" else str(file)
    try:
        document = read(terminal.read_text(file), name=name)
    except CortexError as error:
        faults = error.message.splitlines() if error.code == "invalid_atlas" else [f"{name}: {error.message}"]
        return {"file": name, "ok": False, "faults": faults, "warnings": [], "hint": error.hint}
    atlas = document.atlas
    return {
        "file": name, "ok": True, "faults": [], "warnings": document.warnings,
        "atlas_id": atlas.atlas_id, "version": atlas.version, "digest": atlas.digest,
        **{kind: len(getattr(atlas, kind)) for kind in _KINDS},
    }  # fmt: skip


def _show_validation(result: dict[str, Any]) -> None:
    for line in (*result["faults"], *(f"warning: {warning}" for warning in result["warnings"])):
        typer.echo(harmless(line), err=True)
    if not result["ok"]:
        typer.echo(harmless(result["hint"] or ""), err=True)
        return
    counts = ", ".join(f"{result[kind]} {kind}" for kind in _KINDS)
    terminal.print_line(harmless(f"{result['file']}: ok, {result['atlas_id']} {result['version']}: {counts}"))
