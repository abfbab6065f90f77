"""`cortex atlas`: validate, test, publish and compare atlases."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.text import Text

from cortex_plane.cli.inputs import text_of
from cortex_plane.cli.output import AsJson, Limit, harmless, said, short, show_many, show_one, tell
from cortex_plane.cli.plane import EXIT_CODES, collect, run
from cortex_plane.client import Client
from cortex_plane.gates.model.atlases import (
    AtlasChange,
    AtlasDiff,
    AtlasFile,
    AtlasVersionDetails,
    Published,
    Retired,
)
from cortex_plane.kernel.errors import CortexError, InvalidInput

if TYPE_CHECKING:
    from cortex_plane.gates.model.atlases import Atlas
    from cortex_plane.gates.rules.scenarios import Outcome


atlas_app = typer.Typer(no_args_is_help=True, help="Atlases: the gates that stewards put around agents.")

AtlasPath = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, allow_dash=True, help="YAML or JSON; - reads stdin.")
]
AtlasId = Annotated[str, typer.Argument(help="The id of an atlas, such as com.acme.support.")]
_MARKS = {"added": "+", "removed": "-", "changed": "~"}


@atlas_app.command("publish")
def publish_atlas(file: AtlasPath, as_json: AsJson = False) -> None:
    """Make a file a version, which new sessions are bound to. The same file again changes nothing."""
    draft = AtlasFile(manifest=text_of(file), name="stdin" if str(file) == "-" else file.name[:200])
    published = run(lambda plane: plane.atlases.publish(draft))
    if as_json:
        show_one(published, True)
    else:
        _tell_published(published)


@atlas_app.command("list")
def list_atlases(
    atlas: Annotated[str | None, typer.Argument(help="An atlas: its versions, newest first.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """The atlases of the org; with an id the versions of one."""
    if atlas is None:
        found = run(lambda plane: collect(plane.atlases.list(limit)))
        show_many(found, ["atlas_id", "name", "holds", "newest", "versions", "published_at"], as_json)
        return
    versions = run(lambda plane: collect(plane.atlases.versions(atlas, limit)))
    columns = ["version", "holds", "gates", "published_by", "published_at", "retired_at", "digest"]
    show_many(versions, columns, as_json)


@atlas_app.command("get")
def show_atlas(
    atlas: AtlasId,
    version: Annotated[str | None, typer.Option(help="The one that holds if left out.")] = None,
    source: Annotated[bool, typer.Option("--source", help="Print the file as it was published.")] = False,
    as_json: AsJson = False,
) -> None:
    """One version of an atlas."""

    async def look(plane: Client) -> AtlasVersionDetails:
        named = version or await _current_version(plane, atlas)
        return await plane.atlases.get_version(atlas, named, source=source)

    found = run(look)
    if source and not as_json:
        text = found.source or ""
        # Into a file it goes as it was published; a terminal would obey what is hidden in it.
        sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    else:
        show_one(found, as_json)


@atlas_app.command("diff")
def diff_atlas(
    atlas: AtlasId,
    before: Annotated[str, typer.Argument(help="A version.")],
    after: Annotated[str | None, typer.Argument(help="Another one; the one that holds if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """What a version has otherwise than another: which gates, questions, contexts, capabilities, policies and actions."""

    async def compare(plane: Client) -> AtlasDiff:
        return await plane.atlases.diff(atlas, before, after or await _current_version(plane, atlas))

    found = run(compare)
    if as_json:
        show_one(found, True)
    else:
        _tell_diff(found)


@atlas_app.command("retire")
def retire_atlas(atlas: AtlasId, version: str, as_json: AsJson = False) -> None:
    """Bind no new session to a version. Those that are bound to it go on."""
    retired = run(lambda plane: plane.atlases.retire(atlas, version))
    if as_json:
        show_one(retired, True)
    else:
        _tell_retired(retired)


async def _current_version(plane: Client, atlas: str) -> str:
    """The version that new sessions are bound to; where none is, the newest."""
    found = await plane.atlases.get(atlas)
    return found.holds or found.newest


def _tell_published(published: Published) -> None:
    for warning in published.warnings:
        tell(f"warning: {harmless(warning)}")
    version = published.version
    name = f"{version.atlas_id} {version.version}"
    if published.created:
        said(
            f"published {name} with {version.gates} gates, digest {version.digest[:12]}; new sessions are bound to it"
        )
    elif version.holds:
        said(f"nothing changes: {name} was published before, and holds")
    else:
        said(f"nothing changes: {name} was published before, and does not hold any more")


def _tell_retired(retired: Retired) -> None:
    version = retired.version
    name = f"{version.atlas_id} {version.version}"
    said(f"retired {name}" if retired.changed else f"nothing changes: {name} was retired before")
    if retired.holds is not None:
        said(f"new sessions are bound to {retired.holds}")
        return
    said("no version holds: agents that name the atlas take no new work until one is published")
    for slug in retired.agents:
        tell(f"  {harmless(slug)}")


def _tell_diff(found: AtlasDiff) -> None:
    for change in found.changes:
        for line in _change_lines(change):
            tell(line)
    hidden = found.added + found.removed + found.changed - len(found.changes)
    if hidden > 0:
        tell(f"… and {hidden} more changes")
    said(
        f"{found.before} → {found.after}: {found.added} added, {found.removed} removed, {found.changed} changed"
    )


def _change_lines(change: AtlasChange) -> list[str]:
    lines = [f"{_MARKS[change.change]} {change.kind} {harmless(change.id)}"]
    lines += [
        f"    {harmless(field.field)}: {short(_shown(field.before), 80)} → {short(_shown(field.after), 80)}"
        for field in change.fields
    ]
    return lines


def _shown(value: Any) -> Any:
    return "–" if value is None else value


BESIDE = ".scenarios.yaml"
_OUTCOME_KEYS = (
    "decision",
    "rule",
    "reason",
    "gates",
    "people",
    "questions",
    "contexts",
    "guidance",
    "open",
    "shut",
)

AtlasPaths = Annotated[
    list[Path], typer.Argument(help="Atlas files, YAML or JSON; several are bound together.")
]


@atlas_app.command("test")
def run_scenarios(
    files: AtlasPaths,
    scenarios: Annotated[
        list[Path] | None,
        typer.Option("--scenarios", help=f"Scenario files; if left out, those beside: NAME{BESIDE}."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Play scenarios under an atlas: which gates fire, what they ask, what is decided. Exits with 1 where one differs."""
    from cortex_plane.gates.files.atlases import read
    from cortex_plane.gates.rules.index import CompiledAtlases

    atlases = CompiledAtlases([read(text_of(file), name=str(file)).atlas for file in files])
    played = [
        (path, outcome) for path in _scenario_paths(files, scenarios) for outcome in _play_file(atlases, path)
    ]
    failed = sum(not outcome.passed for _, outcome in played)
    if as_json:
        sys.stdout.buffer.write(
            orjson.dumps(
                [_outcome_row(path, each) for path, each in played], option=orjson.OPT_APPEND_NEWLINE
            )
        )
    else:
        for path, outcome in played:
            _show_outcome(path, outcome)
        tell(
            Text(
                f"{len(played) - failed} of {len(played)} are as expected", style="red" if failed else "green"
            )
        )
    if failed:
        raise typer.Exit(1)


def _scenario_paths(files: list[Path], named: list[Path] | None) -> list[Path]:
    if named:
        return named
    beside = [file.with_suffix("").with_name(file.stem + BESIDE) for file in files]
    found = [path for path in beside if path.is_file()]
    if not found:
        raise InvalidInput(
            f"There are no scenarios: {', '.join(map(str, beside))} is not there.",
            hint="Write some (docs/guides/steward-bench.md), or name a file with --scenarios.",
        )
    return found


def _play_file(atlases: Any, path: Path) -> list[Outcome]:
    from cortex_plane.gates.files.scenarios import read
    from cortex_plane.gates.rules.scenarios import play

    return [play(atlases, each) for each in read(text_of(path), name=str(path))]


def _outcome_row(path: Path, outcome: Outcome) -> dict[str, Any]:
    return {
        "file": str(path), "line": outcome.line, "name": outcome.name, "passed": outcome.passed,
        "faults": outcome.faults, "found": outcome.found,
    }  # fmt: skip


def _show_outcome(path: Path, outcome: Outcome) -> None:
    mark = ("✓", "green") if outcome.passed else ("✗", "red")
    tell(Text.assemble(mark, f" {harmless(outcome.name)}"))
    if outcome.passed:
        return
    tell(Text(f"    {harmless(str(path))}:{outcome.line}", style="dim"))
    for fault in outcome.faults:
        tell(f"    {harmless(fault)}")
    for name in _OUTCOME_KEYS:
        value = outcome.found.get(name)
        if value:
            shown = ", ".join(value) if isinstance(value, list) else str(value)
            tell(Text(f"      {name}: {harmless(shown)}", style="dim"))


Files = Annotated[list[Path], typer.Argument(help="YAML or JSON; - reads stdin.")]


@atlas_app.command("validate")
def validate_atlases(
    files: Files,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings are faults too: exit with 1.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read atlas files without a plane: what is wrong, line by line, and what is probably not meant."""
    results = [_validate_file(file) for file in files]
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(results, option=orjson.OPT_APPEND_NEWLINE))
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
    from cortex_plane.gates.model.atlases import schema as published

    sys.stdout.buffer.write(orjson.dumps(published(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _validate_file(file: Path) -> dict[str, Any]:
    from cortex_plane.gates.files.atlases import read  # only this command needs the reader

    name = "stdin" if str(file) == "-" else str(file)
    try:
        found = read(text_of(file), name=name)
    except CortexError as error:
        at_line = error.code == "invalid_atlas"
        faults = error.message.splitlines() if at_line else [f"{name}: {error.message}"]
        return {"file": name, "ok": False, "faults": faults, "warnings": [], "hint": error.hint}
    return {"file": name, "ok": True, "faults": [], "warnings": found.warnings, **_counts(found.atlas)}


def _counts(atlas: Atlas) -> dict[str, Any]:
    return {
        "atlas_id": atlas.atlas_id, "version": atlas.version, "digest": atlas.digest, "gates": len(atlas.gates),
        "capabilities": len(atlas.capabilities), "contexts": len(atlas.contexts), "policies": len(atlas.policies),
        "actions": len(atlas.actions),
    }  # fmt: skip


def _show_validation(result: dict[str, Any]) -> None:
    for line in (*result["faults"], *(f"warning: {each}" for each in result["warnings"])):
        typer.echo(harmless(line), err=True)
    if not result["ok"]:
        typer.echo(harmless(result["hint"] or ""), err=True)
        return
    counts = ", ".join(f"{result[kind]} {kind}" for kind in ("gates", "capabilities", "contexts", "policies", "actions"))  # fmt: skip
    tell(harmless(f"{result['file']}: ok, {result['atlas_id']} {result['version']}: {counts}"))
