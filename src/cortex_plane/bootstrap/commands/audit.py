"""`cortex audit`: the commands over the API, and `verify`, which also looks into the database."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cortex_plane.adapters.cli import proofs
from cortex_plane.adapters.cli.audit import app
from cortex_plane.adapters.cli.output import AsJson
from cortex_plane.adapters.cli.plane import run
from cortex_plane.domain.extras import extra

if TYPE_CHECKING:
    from cortex_plane.domain.audit import Verification


@app.command()
def verify(
    remote: Annotated[
        bool, typer.Option(help="Ask the API about the key's org instead of the database.")
    ] = False,
    export: Annotated[
        Path | None, typer.Option(help="Verify this export instead, without any plane; - is standard input.")
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option("--key", help="The fingerprint of a key that you trust; after a rotation give each."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Follow every audit chain and signed root, in the database or in a file; names the first bad entry of each."""
    trusted = [proofs.checked_fingerprint(key) for key in keys or ()]
    if export is not None:
        from cortex_plane.domain.export_reading import verify_export

        results = {str(export): verify_export(proofs.export_lines(export))}
    elif remote:
        results = {"this org": run(lambda plane: plane.audit.verify())}
    else:
        results = asyncio.run(_verify_database())
    proofs.show_verification(results, trusted, as_json)


async def _verify_database() -> dict[str, Verification]:
    """With the master key where it is at hand: only that can tell whose keys stand in the database."""
    with extra("server"):
        from cortex_plane.bootstrap.commands.database import app_url
        from cortex_plane.bootstrap.master_key import master_key_at_hand
        from cortex_plane.operations import workers
        from cortex_plane.operations.audit import verify_all
        from cortex_plane.settings import load
        from cortex_plane.storage.database import Database
        from cortex_plane.storage.vault import Vault

    key = master_key_at_hand(load())
    database = await Database.open(app_url(), max_size=2, vault=Vault(key) if key else None, reads_only=True)
    try:
        if key is not None:
            await workers.require_known_key(database, key)
        return await verify_all(database)
    finally:
        await database.close()
