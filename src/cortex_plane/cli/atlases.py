from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from cortex_plane.cli import atlas_scenarios, atlas_versions
from cortex_plane.cli.files import text_of
from cortex_plane.cli.output import AsJson, harmless, tell
from cortex_plane.cli.plane import EXIT_CODES
from cortex_plane.kernel.errors import CortexError, InvalidInput

if TYPE_CHECKING:
    from cortex_plane.gates.model.atlases import Atlas

app = typer.Typer(no_args_is_help=True, help="Atlases: the gates that stewards put around agents.")
atlas_versions.register(app)
atlas_scenarios.register(app)

Files = Annotated[list[Path], typer.Argument(help="YAML or JSON; - reads stdin.")]


@app.command("validate")
def validate(
    files: Files,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings are faults too: exit with 1.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read atlas files without a plane: what is wrong, line by line, and what is probably not meant."""
    results = [_validated(file) for file in files]
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(results, option=orjson.OPT_APPEND_NEWLINE))
    else:
        for result in results:
            _tell(result)
    if not all(result["ok"] for result in results):
        raise typer.Exit(EXIT_CODES[InvalidInput])
    if strict and any(result["warnings"] for result in results):
        raise typer.Exit(1)


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of atlas files, for editors."""
    from cortex_plane.gates.model.atlases import schema as published

    sys.stdout.buffer.write(orjson.dumps(published(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _validated(file: Path) -> dict[str, Any]:
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


def _tell(result: dict[str, Any]) -> None:
    for line in (*result["faults"], *(f"warning: {each}" for each in result["warnings"])):
        typer.echo(harmless(line), err=True)
    if not result["ok"]:
        typer.echo(harmless(result["hint"] or ""), err=True)
        return
    counts = ", ".join(f"{result[kind]} {kind}" for kind in ("gates", "capabilities", "contexts", "policies", "actions"))  # fmt: skip
    tell(harmless(f"{result['file']}: ok, {result['atlas_id']} {result['version']}: {counts}"))
