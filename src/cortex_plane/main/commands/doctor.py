"""`cortex doctor`: examine what is here, and which jobs new code could not resume."""

from __future__ import annotations

from typing import Annotated

import typer

from cortex_plane.cli.output import AsJson, console
from cortex_plane.cli.plane import fail
from cortex_plane.kernel.errors import CortexError, extra

app = typer.Typer(help="Examine this machine, the database and the API.")


@app.callback(invoke_without_command=True)
def doctor_command(context: typer.Context) -> None:
    """Examine this machine, the database and the API."""
    if context.invoked_subcommand is not None:
        return
    from rich.table import Table

    with extra("server"):
        from cortex_plane.main.doctor import examine
        from cortex_plane.main.settings import load

    findings = examine(load())
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        table.add_row(
            "[green]ok[/]" if finding.ok else "[red]not ok[/]",
            finding.name,
            f"{finding.detail} {finding.hint}",
        )
    console().print(table)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


@app.command("preflight")
def preflight(
    apps: Annotated[
        list[str] | None,
        typer.Option("--app", help="An app that workers will load: package.module:app. Any number of times."),
    ] = None,
    replay: Annotated[
        bool, typer.Option(help="Also run code agents up to where they stand, on what they recorded.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List parked jobs that the code, tools and models loaded here cannot resume. Exit code 0: none; 1: some; 2: could not look."""
    with extra("worker"):
        from cortex_plane.main.commands.database import app_url
        from cortex_plane.main.preflight import COULD_NOT_LOOK
        from cortex_plane.main.preflight import preflight as look
        from cortex_plane.main.settings import load

    try:
        code = look(load(), app_url(), apps or [], as_json=as_json, replay=replay)
    except CortexError as error:
        fail(error, COULD_NOT_LOOK)
    raise typer.Exit(code)
