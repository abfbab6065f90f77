from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from cortex_plane.adapters.cli.output import AsJson, Limit, show_many, show_one
from cortex_plane.adapters.cli.plane import collect, run
from cortex_plane.domain.members import MemberChange, MemberDraft, Role

app = typer.Typer(no_args_is_help=True, help="Members: the people of the org.")

Roles = Annotated[list[Role] | None, typer.Option("--role", help="May be given several times.")]
Teams = Annotated[list[str] | None, typer.Option("--team", help="Id or slug; may be given several times.")]
Clearance = Annotated[int | None, typer.Option(min=0, max=1000)]


@app.command()
def add(
    name: str, role: Roles = None, clearance: Clearance = None, team: Teams = None, as_json: AsJson = False
) -> None:
    """Add a member."""
    draft = MemberDraft(
        display_name=name, roles=role or [Role.MEMBER], clearance=clearance or 0, teams=team or []
    )
    show_one(run(lambda plane: plane.members.create(draft)), as_json)


@app.command("list")
def list_members(
    role: Annotated[Role | None, typer.Option(help="Only those who have it.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    found = run(lambda plane: collect(plane.members.list(limit, role)))
    show_many(found, ["id", "display_name", "roles", "clearance", "deactivated_at"], as_json)


@app.command()
def show(member_id: UUID, as_json: AsJson = False) -> None:
    show_one(run(lambda plane: plane.members.get(member_id)), as_json)


@app.command()
def update(
    member_id: UUID,
    name: Annotated[str | None, typer.Option()] = None,
    role: Roles = None,
    clearance: Clearance = None,
    team: Teams = None,
    active: Annotated[
        bool | None, typer.Option("--activate/--deactivate", help="A deactivated member's keys stop working.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change a member. Roles and teams replace the ones they had."""
    change = MemberChange(display_name=name, roles=role, clearance=clearance, teams=team, active=active)
    show_one(run(lambda plane: plane.members.update(member_id, change)), as_json)


@app.command()
def channels(member_id: UUID, limit: Limit = 50, as_json: AsJson = False) -> None:
    """Where a member can be reached."""
    found = run(lambda plane: collect(plane.members.mappings(member_id, limit)))
    show_many(found, ["id", "channel_type", "channel_user_id", "verified_at"], as_json)
