from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from cortex_plane.cli.output import AsJson, Limit, said, show_many, show_one
from cortex_plane.cli.plane import collect, run
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.tenancy.model.credentials import Grantable, KeyDraft, OwnKeyDraft
from cortex_plane.tenancy.model.orgs import Role

app = typer.Typer(no_args_is_help=True, help="API keys: your own, and those of services.")


@app.command("create")
def create(
    name: str,
    service: Annotated[bool, typer.Option("--service", help="For a program; needs --role.")] = False,
    role: Annotated[list[Role] | None, typer.Option("--role", help="The roles of a service key.")] = None,
    permission: Annotated[
        list[Grantable] | None,
        typer.Option("--permission", help="What the service may do by name; may be given several times."),
    ] = None,
    expires_in_days: Annotated[int | None, typer.Option(min=1, max=3650)] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key for you, or for a service, and print it once. Your key ends with the one that you make it with."""
    if service != bool(role) or (permission and not service):
        raise InvalidInput(
            "A key is for you, or for a service (`--service --role ROLE`).",
            hint="See `cortex key create --help`.",
        )
    if service:
        draft = KeyDraft(name=name, roles=role, permissions=permission or [], expires_in_days=expires_in_days)
        new = run(lambda plane: plane.keys.create(draft))
    else:
        own = OwnKeyDraft(name=name, expires_in_days=expires_in_days)
        new = run(lambda plane: plane.keys.create_own(own))
    show_one(new if as_json else new.key, as_json)
    if not as_json:
        said(f"\nThe key, shown once:\n  {new.secret}")


@app.command("list")
def list_keys(limit: Limit = 50, as_json: AsJson = False) -> None:
    found = run(lambda plane: collect(plane.keys.list(limit)))
    columns = ["id", "name", "kind", "last_characters", "last_used_at", "expires_at", "revoked_at"]
    show_many(found, columns, as_json)


@app.command("show")
def show(key_id: UUID, as_json: AsJson = False) -> None:
    show_one(run(lambda plane: plane.keys.get(key_id)), as_json)


@app.command("revoke")
def revoke(key_id: UUID, as_json: AsJson = False) -> None:
    """At once and for good, with the keys and browser sessions that came from it."""
    show_one(run(lambda plane: plane.keys.revoke(key_id)), as_json)
