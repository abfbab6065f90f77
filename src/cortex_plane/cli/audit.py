from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from uuid import UUID

import orjson
import typer

from cortex_plane.cli.output import AsJson, Limit, show_many, show_one, tell
from cortex_plane.cli.plane import collect, run
from cortex_plane.client import Client
from cortex_plane.kernel.errors import AlreadyExists, InvalidInput, Unavailable

app = typer.Typer(no_args_is_help=True, help="The audit trail.")


@app.command("list")
def list_audit(
    session: Annotated[
        UUID | None, typer.Option(help="The chain of a session; the org's own if left out.")
    ] = None,
    limit: Limit = 200,
    as_json: AsJson = False,
) -> None:
    """The entries of a chain, oldest first."""
    found = run(lambda plane: collect(plane.audit.list(session, limit)))
    show_many(found, ["seq", "created_at", "action", "body", "hash"], as_json)


@app.command("roots")
def roots(limit: Limit = 50, as_json: AsJson = False) -> None:
    """Signed roots over all chains, newest first. Keep the hash of one elsewhere: nobody can take back what it covers."""
    found = run(lambda plane: collect(plane.audit.roots(limit)))
    show_many(found, ["seq", "created_at", "covers", "chains", "hash", "fingerprint"], as_json)


@app.command("root")
def root(as_json: AsJson = False) -> None:
    """Make a root over everything so far, without waiting for the hour."""
    answer = run(lambda plane: plane.audit.make_root())
    if as_json:
        show_one(answer, True)
        return
    new = answer.root
    what = f"covers {new.covers} of {new.chains} chains" if answer.made else "nothing was appended since"
    tell(f"root {new.seq}: {what}")
    tell(f"  hash         {new.hash}")
    tell(f"  signed with  {new.fingerprint}")


@app.command("keys")
def keys(as_json: AsJson = False) -> None:
    """The public keys that receipts and roots are signed with. Write their fingerprints down where others cannot."""
    found = run(lambda plane: plane.audit.keys())
    show_many(list(found), ["id", "fingerprint", "public_key", "created_at", "retired_at"], as_json)


@app.command("rotate-key")
def rotate_key(as_json: AsJson = False) -> None:
    """Sign with a new key from now on. The old one stays listed, and what it signed stays valid."""
    show_one(run(lambda plane: plane.audit.rotate_key()), as_json)


@app.command("export")
def export(
    file: Annotated[str, typer.Argument(help="Where to; - is standard output.")] = "-",
    session: Annotated[
        UUID | None, typer.Option(help="Only the chain of a session; the whole org's trail if left out.")
    ] = None,
) -> None:
    """The trail as a file that can be verified without the plane: examples/verify_export.py."""

    async def copy(plane: Client, output: BinaryIO) -> bytes:
        last = b""
        async for piece in plane.audit.export(session):
            output.write(piece)
            # A trailer is short: this much holds it, wherever the network cut the pieces.
            last = (last + piece)[-1000:]
        output.flush()
        return last

    with _opened(file) as output:
        trailer = _trailer(run(lambda plane: copy(plane, output)))
    typer.echo(f"{trailer['chains']} chains, {trailer['entries']} entries", err=True)


@contextlib.contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    """A new file for its owner alone, gone again if it does not get whole. An old one is evidence, and stays."""
    if file == "-":
        yield sys.stdout.buffer
        return
    path = Path(file)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError as error:
        raise AlreadyExists(f"{file} is there already.", hint="Choose another name, or remove it.") from error
    except OSError as error:
        raise InvalidInput(
            f"{file} cannot be written: {error.strerror}.", hint="Choose another place."
        ) from error
    try:
        with os.fdopen(descriptor, "wb") as output:
            yield output
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _trailer(last: bytes) -> dict[str, Any]:
    with contextlib.suppress(orjson.JSONDecodeError):
        found: dict[str, Any] = orjson.loads(last.splitlines()[-1] if last else b"")
        if last.endswith(b"\n") and found.get("type") == "trailer":
            return found
    raise Unavailable("The export was cut off.", code="cut_off", hint="Ask again.")
