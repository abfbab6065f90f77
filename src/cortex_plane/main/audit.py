"""`cortex audit verify`, which also looks into the database."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from cortex_plane.cli import proof
from cortex_plane.cli.plane import run
from cortex_plane.cli.proof import audit_app
from cortex_plane.cli.terminal import AsJson
from cortex_plane.kernel.errors import InvalidInput, extra
from cortex_plane.proof.rules.roots import read_copies, read_times

if TYPE_CHECKING:
    from cortex_plane.proof.model import Verification
    from cortex_plane.proof.rules.roots import Held


@audit_app.command("verify")
def verify_trail(
    remote: Annotated[bool, Option(help="Ask the API about the key's org instead of the database.")] = False,
    export: Annotated[
        Path | None, Option(help="Verify this export instead, without any plane; - is standard input.")
    ] = None,
    keys: Annotated[
        list[str] | None, Option("--key", help="The fingerprint of a key that you trust; after a rotation give each.")
    ] = None,
    roots: Annotated[
        Path | None, Option(help="Copies of roots that were kept outside of the database, such as roots.jsonl.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Follow every audit chain and signed root, in the database or in a file; names the first bad entry of each, and in the
    database every row that is not what the trail says of it."""
    fingerprints = [proof.check_fingerprint(key) for key in keys or ()]
    copies = _read_root_copies(roots, remote=remote)
    copies_by_root = read_copies(copies) if copies else None
    if export is not None:
        from cortex_plane.proof.rules.exports import verify_export

        results = {str(export): verify_export(proof.export_lines(export), copies_by_root, read_times(copies))}
    elif remote:
        results = {"this org": run(lambda plane: plane.audit.verify())}
    else:
        results = asyncio.run(_verify_database(copies_by_root))
    proof.show_verification(results, fingerprints, as_json)


def _read_root_copies(roots: Path | None, *, remote: bool) -> list[bytes]:
    if roots is None:
        return []
    if remote:
        raise InvalidInput(
            "--roots is for the database and for an export.",
            hint="Export the trail with `cortex audit export`, and verify that.",
        )
    return list(proof.export_lines(roots))


async def _verify_database(copies_by_root: Held | None) -> dict[str, Verification]:
    """With the master key where it is at hand: only that can tell whose keys stand in the database."""
    with extra("server"):
        from cortex_plane.db.database import Database
        from cortex_plane.db.vault import Vault
        from cortex_plane.jobs.verbs.master_key import require_known_key
        from cortex_plane.main.commands import app_url
        from cortex_plane.main.master_key import existing_master_key
        from cortex_plane.main.settings import load
        from cortex_plane.proof.verbs.audit import verify_all

    key = existing_master_key(load())
    vault = Vault(key) if key else None
    database = await Database.open(app_url(), max_size=2, vault=vault, reads_only=True)
    try:
        if vault is not None:
            await require_known_key(database, vault)
        return await verify_all(database, copies_by_root)
    finally:
        await database.close()
