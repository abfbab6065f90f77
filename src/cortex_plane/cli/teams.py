from __future__ import annotations

from typing import Annotated

import typer

from cortex_plane.cli.output import AsJson, Limit, said, show_many, show_one
from cortex_plane.cli.plane import collect, run
from cortex_plane.tenancy.model.orgs import TeamChange, TeamDraft

app = typer.Typer(no_args_is_help=True, help="Teams: groups of members, and what agents belong to.")


@app.command("create")
def create(
    slug: str,
    name: Annotated[str | None, typer.Option(help="A name for people; the slug if left out.")] = None,
    parent: Annotated[str | None, typer.Option(help="The parent team's id or slug.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a team."""
    draft = TeamDraft(slug=slug, name=name or slug, parent=parent)
    show_one(run(lambda plane: plane.teams.create(draft)), as_json)


@app.command("list")
def list_teams(limit: Limit = 50, as_json: AsJson = False) -> None:
    found = run(lambda plane: collect(plane.teams.list(limit)))
    show_many(found, ["id", "slug", "name", "parent_id", "created_at"], as_json)


@app.command("show")
def show(team: str, as_json: AsJson = False) -> None:
    show_one(run(lambda plane: plane.teams.get(team)), as_json)


@app.command("rename")
def rename(team: str, name: str, as_json: AsJson = False) -> None:
    show_one(run(lambda plane: plane.teams.update(team, TeamChange(name=name))), as_json)


@app.command("delete")
def delete(team: str) -> None:
    """Delete a team that nothing uses."""
    run(lambda plane: plane.teams.delete(team))
    said(f"deleted {team}")
