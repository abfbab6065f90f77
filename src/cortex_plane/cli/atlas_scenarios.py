"""`cortex atlas test`: an atlas tried against what its stewards expect of it, without a plane."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.text import Text

from cortex_plane.cli.files import text_of
from cortex_plane.cli.output import AsJson, harmless, tell
from cortex_plane.kernel.errors import InvalidInput

if TYPE_CHECKING:
    from cortex_plane.gates.rules.scenarios import ScenarioOutcome

BESIDE = ".scenarios.yaml"
_SHOWN = (
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

Files = Annotated[list[Path], typer.Argument(help="Atlas files, YAML or JSON; several are bound together.")]


def register(app: typer.Typer) -> None:
    app.command("test")(play_scenarios)


def play_scenarios(
    files: Files,
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
    played = [(path, outcome) for path in _paths(files, scenarios) for outcome in _play(atlases, path)]
    failed = sum(not outcome.passed for _, outcome in played)
    if as_json:
        sys.stdout.buffer.write(
            orjson.dumps([_row(path, each) for path, each in played], option=orjson.OPT_APPEND_NEWLINE)
        )
    else:
        for path, outcome in played:
            _tell(path, outcome)
        tell(
            Text(
                f"{len(played) - failed} of {len(played)} are as expected", style="red" if failed else "green"
            )
        )
    if failed:
        raise typer.Exit(1)


def _paths(files: list[Path], named: list[Path] | None) -> list[Path]:
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


def _play(atlases: Any, path: Path) -> list[ScenarioOutcome]:
    from cortex_plane.gates.files.scenarios import read
    from cortex_plane.gates.rules.scenarios import play

    return [play(atlases, each) for each in read(text_of(path), name=str(path))]


def _row(path: Path, outcome: ScenarioOutcome) -> dict[str, Any]:
    return {
        "file": str(path), "line": outcome.line, "name": outcome.name, "passed": outcome.passed,
        "faults": outcome.faults, "found": outcome.found,
    }  # fmt: skip


def _tell(path: Path, outcome: ScenarioOutcome) -> None:
    mark = ("✓", "green") if outcome.passed else ("✗", "red")
    tell(Text.assemble(mark, f" {harmless(outcome.name)}"))
    if outcome.passed:
        return
    tell(Text(f"    {harmless(str(path))}:{outcome.line}", style="dim"))
    for fault in outcome.faults:
        tell(f"    {harmless(fault)}")
    for name in _SHOWN:
        value = outcome.found.get(name)
        if value:
            shown = ", ".join(value) if isinstance(value, list) else str(value)
            tell(Text(f"      {name}: {harmless(shown)}", style="dim"))
