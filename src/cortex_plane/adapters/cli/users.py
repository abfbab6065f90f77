from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from cortex_plane.adapters.cli.output import AsJson, Limit, said, show_many, show_one, tell
from cortex_plane.adapters.cli.plane import collect, run
from cortex_plane.domain.identities import AddressDraft

app = typer.Typer(no_args_is_help=True, help="Yourself: the addresses and channels where you are reached.")


@app.command()
def link(
    email: Annotated[str | None, typer.Option(help="A mail address of yours, instead of a channel.")] = None,
    as_json: AsJson = False,
) -> None:
    """Link another channel to you: shows a code to type there. With --email, mails a link to that address."""
    if email is not None:
        draft = AddressDraft(email=email)
        mapping = run(lambda plane: plane.identities.add_address(draft))
        if as_json:
            show_one(mapping, as_json)
            return
        said(f"a mail is on its way to {mapping.channel_user_id}")
        said("open its link in a browser in which you are logged in (cortex member login-link)")
        return
    code = run(lambda plane: plane.identities.link_code())
    if as_json:
        show_one(code, as_json)
        return
    tell(code.code)
    said(f"type it on the other channel; works once, until {code.expires_at.astimezone():%H:%M:%S}")


@app.command()
def channels(limit: Limit = 50, as_json: AsJson = False) -> None:
    """Where you are reached. What is not verified yet receives nothing."""
    found = run(lambda plane: collect(plane.identities.mappings(limit)))
    show_many(found, ["id", "channel_type", "channel_user_id", "verified_at"], as_json)


@app.command()
def unlink(mapping_id: UUID) -> None:
    """Give up a channel or an address of yours."""
    run(lambda plane: plane.identities.unlink(mapping_id))
    said("unlinked")
