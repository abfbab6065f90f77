from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from cortex_plane.cli.output import AsJson, said, show_one
from cortex_plane.cli.plane import home, run
from cortex_plane.client import Client
from cortex_plane.client.access import ACCESS_FILE, write_private
from cortex_plane.tenancy.model.credentials import NewKey, Redemption

app = typer.Typer()


@app.command("me")
def me(as_json: AsJson = False) -> None:
    """Who the key stands for, and what it may do."""
    show_one(run(lambda plane: plane.me()), as_json)


@app.command("enrol")
def enrol(
    code: Annotated[
        str, typer.Argument(help="What an admin handed you; `-` reads it from standard input.")
    ] = "-",
    url: Annotated[str | None, typer.Option(help="The address of the plane; CORTEX_URL without it.")] = None,
    name: Annotated[str, typer.Option(help="A name for your key.")] = "command line",
    as_json: AsJson = False,
) -> None:
    """Redeem an enrolment code for a key of your own. In a folder without one the key is kept, else it is printed once."""
    if url is not None:
        os.environ["CORTEX_URL"] = url
    given = (sys.stdin.readline() if code == "-" else code).strip().rpartition("/")[2]

    async def redeem(plane: Client) -> tuple[str, NewKey]:
        return plane.url, await plane.members.enrol(Redemption(code=given, key_name=name))

    address, new = run(redeem, without_key=True)
    if as_json:
        show_one(new, as_json)
        return
    show_one(new.key, as_json)
    kept = home() / ACCESS_FILE
    if new.secret is None or kept.exists():
        said(f"\nYour key, shown once:\n  {new.secret}")
        return
    kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(kept, {"url": address, "key": new.secret})
    said(f"\nYour key is kept in {kept}.")
