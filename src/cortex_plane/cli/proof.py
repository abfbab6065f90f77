"""`cortex audit`, `cortex approval receipt`, and how a verification is shown."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from uuid import UUID

import orjson
import typer

from cortex_plane.cli.approvals import approval_app
from cortex_plane.cli.output import AsJson, Limit, harmless, show_many, show_one, tell
from cortex_plane.cli.plane import collect, run
from cortex_plane.client import Client
from cortex_plane.kernel.errors import AlreadyExists, InvalidInput, Unavailable
from cortex_plane.proof.model import KEY_BYTES, Verification, fingerprint, from_base64
from cortex_plane.proof.rules.receipts import Checked, as_file, check_file

LONGEST_LINE = 256 * 1024 * 1024
WIDTH = 13


@approval_app.command("receipt")
def show_or_verify_receipt(
    approval_id: Annotated[UUID | None, typer.Argument(help="Whose receipt to fetch.")] = None,
    out: Annotated[Path | None, typer.Option(help="Save it here instead of printing it.")] = None,
    verify: Annotated[
        Path | None, typer.Option(help="Verify this file, without any plane; - is standard input.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="The fingerprint of the key that must have signed it.")
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="The same, as a file with the public key in base64.")
    ] = None,
) -> None:
    """The signed proof of a decision: fetch it, or verify one that you have."""
    if (approval_id is None) == (verify is None) or (verify is not None and out is not None):
        raise InvalidInput("Name either an approval or a file to verify.", hint="See --help.")
    if approval_id is not None:
        if key is not None or public_key is not None:
            raise InvalidInput("--key and --public-key are for --verify.", hint="See --help.")
        id = approval_id
        _save_receipt(as_file(run(lambda plane: plane.approvals.receipt(id))), out)
        return
    checked = check_file(_read_bytes(verify), _trusted_fingerprint(key, public_key))
    pinned = key is not None or public_key is not None
    for line in _receipt_lines(checked, pinned):
        tell(line)
    if checked.fault is not None:
        raise typer.Exit(1)


def _save_receipt(content: bytes, out: Path | None) -> None:
    if out is None:
        sys.stdout.write(content.decode())
        return
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError as error:
        raise AlreadyExists(f"{out} is there already.", hint="Choose another name, or remove it.") from error
    except OSError as error:
        raise InvalidInput(
            f"{out} cannot be written: {error.strerror}.", hint="Choose another place."
        ) from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    tell(f"saved to {out}; verify it anywhere with `cortex approval receipt --verify {out}`")


def _read_bytes(file: Path | None) -> bytes:
    if file is None or str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.", hint="Check its name.") from error


def _trusted_fingerprint(key: str | None, public_key: Path | None) -> str | None:
    if key is not None and public_key is not None:
        raise InvalidInput("--key and --public-key say the same: give one of them.", hint="See --help.")
    if public_key is not None:
        raw = from_base64(_read_bytes(public_key).decode(errors="replace").strip(), KEY_BYTES)
        if raw is None:
            raise InvalidInput(
                f"{public_key} does not hold a public key.",
                hint="It holds 32 bytes in base64, and nothing else.",
            )
        return fingerprint(raw)
    return check_fingerprint(key) if key is not None else None


def check_fingerprint(key: str) -> str:
    if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
        raise InvalidInput(
            "A fingerprint is 64 lower-case hexadecimal digits.", hint="`cortex audit keys` lists them."
        )
    return key


# What a receipt says ---------------------------------------------------------------------------------------------


def _receipt_lines(checked: Checked, pinned: bool) -> Iterator[str]:
    if checked.fault is not None:
        yield f"NOT valid: {harmless(checked.fault)}"
        return
    says = checked.says
    yield f"valid: {says['tool']['name']} was {says['decision']} by {_who(says['by'])} at {says['decided_at']}"
    facts = {
        "approval": f"{says['approval']}, version {says['approval_version']}, via {says['via']}",
        "arguments": says["arguments"]["digest"],
        "edited from": says["arguments"]["original_digest"],
        "tool digest": says["tool"]["digest"],
        "calls": ", ".join(says["calls"]),
        "policy": f"{says['policy']['rule']} (version {says['policy']['version']})",
        "policy file": says["policy"]["file_digest"],
        "card": says["card"]["digest"],
        "votes": _join(f"{_who(vote['by'])} {vote['decision']} at {vote['at']}" for vote in says["votes"]),
        "delegated": _join(f"{_who(hop['from'])} to {_who(hop['to'])}" for hop in says["delegations"]),
        "standing": _standing_line(says["standing"]),
        "session": says["session"],
        "checkpoint": _join(
            f"job {mark['job']} step {mark['step_index']} crc32 {mark['crc32']}"
            for mark in says["checkpoints"]
        ),
        "org": says["org"],
        "key": checked.fingerprint,
    }
    for name, value in facts.items():
        if value:
            yield f"  {name:<{WIDTH}}{harmless(str(value)).replace(chr(10), ' ')}"
    if not pinned:
        yield "  compare the key with `cortex audit keys`, or name it with --key"


def _standing_line(given: dict[str, Any] | None) -> str:
    """The yes to more calls of the session, with its bounds."""
    if given is None:
        return ""
    bounds = {
        "same arguments": given["input_hash"],
        "at most": given["max_calls"] and f"{given['max_calls']} calls",
        "where": given["condition"],
    }
    told = "".join(f", {name} {value}" for name, value in bounds.items() if value)
    return f"{given['id']}, until {given['expires_at']}{told}"


def _join(parts: Iterator[str]) -> str:
    return "; ".join(parts)


def _who(person: dict[str, Any]) -> str:
    return harmless(str(person["name"])).replace("\n", " ")


# What a verification found ---------------------------------------------------------------------------------------


def export_lines(file: Path) -> Iterator[bytes]:
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as opened:
            while line := opened.readline(LONGEST_LINE):
                yield line
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.", hint="Check its name.") from error


def show_verification(results: Mapping[str, Verification], keys: Sequence[str], as_json: bool) -> None:
    """Ends the command with 1 where anything is wrong, or is signed with a key that is none of ``keys``."""
    strange = {name: _unknown_keys(result, keys) for name, result in results.items()}
    if as_json:
        show_many(list(results.values()), [], True)
    else:
        for name, result in results.items():
            _show_result(name, result, strange[name], pinned=bool(keys))
    broken = any(not result.whole for result in results.values())
    if broken or any(strange.values()):
        raise typer.Exit(1)


def _show_result(name: str, result: Verification, strange: Sequence[str], *, pinned: bool) -> None:
    bad = len(result.faults) + len(result.root_faults) + len(result.row_faults) + len(strange)
    counted = f"{result.chains} chains, {result.entries} entries" + (
        f", {result.roots} roots" if result.roots else ""
    )
    counted += f", {result.blanked} erased bodies" if result.blanked else ""
    tell(f"{name}: {counted}, {f'{bad} broken' if bad else 'whole'}")
    for fault in result.faults:
        tell(f"  chain {fault.chain_id}, entry {fault.seq}: {fault.reason}")
    for wrong in result.root_faults:
        tell(f"  root {wrong.root}: {wrong.reason}")
    for content in result.row_faults:
        tell(f"  {content.subject}: {content.reason}")
    for line in strange:
        tell(f"  {line}")
    for entry in result.blanked_entries:
        tell(f"  chain {entry.chain_id}, entry {entry.seq}: its body was erased")
    if result.blanked > len(result.blanked_entries):
        tell(f"  and {result.blanked - len(result.blanked_entries)} more bodies were erased")
    if result.newer_copies:
        tell(f"  {result.newer_copies} copies of roots are newer than the export and were not compared")
    for used in result.fingerprints:
        tell(f"  signed with {used}")
    if result.fingerprints and not result.keys_checked and not pinned:
        tell(
            "  keys NOT checked: there is no master key here; compare them with those that you wrote down, or name"
            " them with --key"
        )


def _unknown_keys(result: Verification, keys: Sequence[str]) -> list[str]:
    if not keys:
        return []
    if not result.fingerprints:
        return ["no root is signed with a key that you named: nothing vouches for this"]
    return [f"signed with {used}, which you did not name" for used in result.fingerprints if used not in keys]


audit_app = typer.Typer(no_args_is_help=True, help="The audit trail.")


@audit_app.command("list")
def list_entries(
    session: Annotated[
        UUID | None, typer.Option(help="The chain of a session; the org's own if left out.")
    ] = None,
    limit: Limit = 200,
    as_json: AsJson = False,
) -> None:
    """The entries of a chain, oldest first."""
    found = run(lambda plane: collect(plane.audit.list(session, limit)))
    show_many(found, ["seq", "created_at", "action", "body", "hash"], as_json)


@audit_app.command("roots")
def list_roots(limit: Limit = 50, as_json: AsJson = False) -> None:
    """Signed roots over all chains, newest first. Keep the hash of one elsewhere: nobody can take back what it covers."""
    found = run(lambda plane: collect(plane.audit.roots(limit)))
    show_many(found, ["seq", "created_at", "covers", "chains", "hash", "fingerprint"], as_json)


@audit_app.command("root")
def create_root(as_json: AsJson = False) -> None:
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


@audit_app.command("keys")
def list_signing_keys(as_json: AsJson = False) -> None:
    """The public keys that receipts and roots are signed with. Write their fingerprints down where others cannot."""
    found = run(lambda plane: plane.audit.keys())
    show_many(list(found), ["id", "fingerprint", "public_key", "created_at", "retired_at"], as_json)


@audit_app.command("rotate-key")
def rotate_signing_key(as_json: AsJson = False) -> None:
    """Sign with a new key from now on. The old one stays listed, and what it signed stays valid."""
    show_one(run(lambda plane: plane.audit.rotate_key()), as_json)


@audit_app.command("export")
def export_trail(
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

    with _new_file(file) as output:
        trailer = _trailer(run(lambda plane: copy(plane, output)))
    typer.echo(f"{trailer['chains']} chains, {trailer['entries']} entries", err=True)


@contextlib.contextmanager
def _new_file(file: str) -> Iterator[BinaryIO]:
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
