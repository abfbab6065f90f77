from __future__ import annotations

from typing import Annotated

import typer

from cortex_plane.cli.output import AsJson, Limit, said, show_many, show_one
from cortex_plane.cli.plane import collect, run
from cortex_plane.tenancy.model.orgs import OrgChange, OrgDraft, OrgSettingsChange

app = typer.Typer(no_args_is_help=True, help="Orgs: the tenants of a plane.")


@app.command("create")
def create(
    slug: str,
    name: Annotated[str | None, typer.Option(help="A name for people; the slug if left out.")] = None,
    admin: Annotated[str, typer.Option(help="The name of its first admin.")] = "Admin",
    as_json: AsJson = False,
) -> None:
    """Create an org. Needs a platform key; prints the enrolment code of its first admin once."""
    new = run(lambda plane: plane.orgs.create(OrgDraft(slug=slug, name=name or slug, admin_name=admin)))
    show_one(new.org if not as_json else new, as_json)
    if not as_json:
        said("\nIts admin redeems this code once, within 24 hours, with `cortex enrol` or in a browser:")
        said(f"  {new.enrolment.code}")


@app.command("list")
def list_orgs(limit: Limit = 50, as_json: AsJson = False) -> None:
    """All orgs of the plane. Needs a platform key."""
    found = run(lambda plane: collect(plane.orgs.list(limit)))
    show_many(found, ["id", "slug", "name", "created_at"], as_json)


@app.command("show")
def show(as_json: AsJson = False) -> None:
    """The org of the key."""
    show_one(run(lambda plane: plane.orgs.get()), as_json)


@app.command("update")
def update(
    name: Annotated[str | None, typer.Option()] = None,
    guests_may_chat: Annotated[
        bool | None, typer.Option(help="Whether people whom nobody invited may talk with agents.")
    ] = None,
    redact: Annotated[
        list[str] | None,
        typer.Option(
            help="A glob of names of arguments that no mail shows the values of, besides the plane's own; repeat it."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change the org of the key. What is left out stays as it is."""
    globs = tuple(redact) if redact else None
    given = guests_may_chat is not None or globs is not None
    settings = OrgSettingsChange(guests_may_chat=guests_may_chat, redact=globs) if given else None
    show_one(run(lambda plane: plane.orgs.update(OrgChange(name=name, settings=settings))), as_json)


@app.command("rotate-secret")
def rotate_secret(
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Links that were sent stop working at once. For a secret that leaked."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Sign links with a new secret. Those that were sent work to their own deadline."""
    show_one(run(lambda plane: plane.orgs.rotate_secret(forget=forget)), as_json)
