"""`cortex audit`, `cortex approval receipt`, and how a verification is shown."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from uuid import UUID

import orjson
import typer
from typer import Argument, Option

from cortex_plane.cli.approvals import approval_app
from cortex_plane.cli.plane import harmless, run
from cortex_plane.cli.terminal import AsJson, add_command, new_file, print_line, print_table, read_bytes, show_record
from cortex_plane.client import Client
from cortex_plane.kernel.errors import InvalidInput, Unavailable
from cortex_plane.proof import routes
from cortex_plane.proof.model import KEY_BYTES, RootMade, Verification, fingerprint, from_base64
from cortex_plane.proof.rules.receipts import Checked, as_file, check_file

LONGEST_LINE = 256 * 1024 * 1024
WIDTH = 13


@approval_app.command("receipt")
def show_or_verify_receipt(
    approval_id: Annotated[UUID | None, Argument(help="Whose receipt to fetch.")] = None,
    out: Annotated[Path | None, Option(help="Save it here instead of printing it.")] = None,
    verify: Annotated[Path | None, Option(help="Verify this file, without any plane; - is standard input.")] = None,
    key: Annotated[str | None, Option(help="The fingerprint of the key that must have signed it.")] = None,
    public_key: Annotated[Path | None, Option(help="The same, as a file with the public key in base64.")] = None,
) -> None:
    """The signed proof of a decision: fetch it, or verify one that you have."""
    if (approval_id is None) == (verify is None) or (verify is not None and out is not None):
        raise InvalidInput("Name either an approval or a file to verify.", hint="See --help.")
    if approval_id is not None:
        if key is not None or public_key is not None:
            raise InvalidInput("--key and --public-key are for --verify.", hint="See --help.")
        id = approval_id
        content = as_file(run(lambda plane: plane.approvals.receipt(id)))
        if out is None:
            sys.stdout.write(content.decode())
            return
        with new_file(out) as file:
            file.write(content)
        print_line(f"saved to {out}; verify it anywhere with `cortex approval receipt --verify {out}`")
        return
    check = check_file(read_bytes(verify or Path("-")), _trusted_fingerprint(key, public_key))
    for line in _receipt_lines(check, pinned=key is not None or public_key is not None):
        print_line(line)
    if check.fault is not None:
        raise typer.Exit(1)


def _trusted_fingerprint(key: str | None, public_key: Path | None) -> str | None:
    if key is not None and public_key is not None:
        raise InvalidInput("--key and --public-key say the same: give one of them.", hint="See --help.")
    if public_key is not None:
        raw = from_base64(read_bytes(public_key).decode(errors="replace").strip(), KEY_BYTES)
        if raw is None:
            raise InvalidInput(
                f"{public_key} does not hold a public key.", hint="It holds 32 bytes in base64, and nothing else."
            )
        return fingerprint(raw)
    return check_fingerprint(key) if key is not None else None


def check_fingerprint(key: str) -> str:
    if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
        raise InvalidInput("A fingerprint is 64 lower-case hexadecimal digits.", hint="`cortex audit keys` lists them.")
    return key


def _receipt_lines(check: Checked, *, pinned: bool) -> Iterator[str]:
    if check.fault is not None:
        yield f"NOT valid: {harmless(check.fault)}"
        return
    says = check.says
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
        "votes": "; ".join(f"{_who(vote['by'])} {vote['decision']} at {vote['at']}" for vote in says["votes"]),
        "delegated": "; ".join(f"{_who(hop['from'])} to {_who(hop['to'])}" for hop in says["delegations"]),
        "standing": _standing_line(says["standing"]),
        "session": says["session"],
        "checkpoint": "; ".join(
            f"job {mark['job']} step {mark['step_index']} crc32 {mark['crc32']}" for mark in says["checkpoints"]
        ),
        "org": says["org"],
        "key": check.fingerprint,
    }
    for name, value in facts.items():
        if value:
            yield f"  {name:<{WIDTH}}{harmless(str(value)).replace(chr(10), ' ')}"
    if not pinned:
        yield "  compare the key with `cortex audit keys`, or name it with --key"


def _standing_line(standing: dict[str, Any] | None) -> str:
    """A standing approval with its bounds."""
    if standing is None:
        return ""
    bounds = {
        "same arguments": standing["input_hash"],
        "at most": standing["max_calls"] and f"{standing['max_calls']} calls",
        "where": standing["condition"],
    }
    text = "".join(f", {name} {value}" for name, value in bounds.items() if value)
    return f"{standing['id']}, until {standing['expires_at']}{text}"


def _who(person: dict[str, Any]) -> str:
    return harmless(str(person["name"])).replace("\n", " ")


def export_lines(file: Path) -> Iterator[bytes]:
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as export:
            while line := export.readline(LONGEST_LINE):
                yield line
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.", hint="Check its name.") from error


def show_verification(results: Mapping[str, Verification], keys: Sequence[str], as_json: bool) -> None:
    """Exit with 1 where anything is wrong, or signed with a key that is none of ``keys``."""
    unknown = {name: _unknown_keys(result, keys) for name, result in results.items()}
    if as_json:
        print_table(list(results.values()), as_json=True)
    else:
        for name, result in results.items():
            for line in _verification_lines(name, result, unknown[name], pinned=bool(keys)):
                print_line(line)
    if any(unknown.values()) or not all(result.whole for result in results.values()):
        raise typer.Exit(1)


def _verification_lines(name: str, result: Verification, unknown: Sequence[str], *, pinned: bool) -> Iterator[str]:
    bad = len(result.faults) + len(result.root_faults) + len(result.row_faults) + len(unknown)
    counts = f"{result.chains} chains, {result.entries} entries"
    counts += f", {result.roots} roots" if result.roots else ""
    counts += f", {result.blanked} erased bodies" if result.blanked else ""
    yield f"{name}: {counts}, {f'{bad} broken' if bad else 'whole'}"
    yield from (f"  chain {fault.chain_id}, entry {fault.seq}: {fault.reason}" for fault in result.faults)
    yield from (f"  root {fault.root}: {fault.reason}" for fault in result.root_faults)
    yield from (f"  {fault.subject}: {fault.reason}" for fault in result.row_faults)
    yield from (f"  {line}" for line in unknown)
    for entry in result.blanked_entries:
        yield f"  chain {entry.chain_id}, entry {entry.seq}: its body was erased"
    if result.blanked > len(result.blanked_entries):
        yield f"  and {result.blanked - len(result.blanked_entries)} more bodies were erased"
    if result.newer_copies:
        yield f"  {result.newer_copies} copies of roots are newer than the export and were not compared"
    yield from (f"  signed with {key}" for key in result.fingerprints)
    if result.fingerprints and not result.keys_checked and not pinned:
        yield (
            "  keys NOT checked: there is no master key here; compare them with those that you wrote down, or name"
            " them with --key"
        )


def _unknown_keys(result: Verification, keys: Sequence[str]) -> list[str]:
    if not keys:
        return []
    if not result.fingerprints:
        return ["no root is signed with a key that you named: nothing vouches for this"]
    return [f"signed with {key}, which you did not name" for key in result.fingerprints if key not in keys]


audit_app = typer.Typer(no_args_is_help=True, help="The audit trail.")

add_command(
    audit_app,
    "list",
    routes.LIST_AUDIT,
    "The entries of a chain, oldest first.",
    session="The chain of a session; the org's own if left out.",
    limit=200,
)
add_command(
    audit_app,
    "roots",
    routes.LIST_ROOTS,
    "Signed roots over all chains, newest first. Keep the hash of one elsewhere: nobody can take back what it covers.",
)


@audit_app.command("root")
def create_root(as_json: AsJson = False) -> None:
    """Make a root over everything so far, without waiting for the hour."""
    show_record(lambda plane: plane.audit.make_root(), as_json, _show_root)


def _show_root(answer: RootMade) -> None:
    new = answer.root
    what = f"covers {new.covers} of {new.chains} chains" if answer.made else "nothing was appended since"
    print_line(f"root {new.seq}: {what}")
    print_line(f"  hash         {new.hash}")
    print_line(f"  signed with  {new.fingerprint}")


add_command(
    audit_app,
    "keys",
    routes.LIST_SIGNING_KEYS,
    "The public keys that receipts and roots are signed with. Write their fingerprints down where others cannot.",
)
add_command(
    audit_app,
    "rotate-key",
    routes.ROTATE_SIGNING_KEY,
    "Sign with a new key from now on. The old one stays listed, and what it signed stays valid.",
)


@audit_app.command("export")
def export_trail(
    file: Annotated[str, Argument(help="Where to; - is standard output.")] = "-",
    session: Annotated[
        UUID | None, Option(help="Only the chain of a session; the whole org's trail if left out.")
    ] = None,
) -> None:
    """The trail as a file that can be verified without the plane: examples/verify_export.py."""

    async def copy(plane: Client, output: BinaryIO) -> bytes:
        last = b""
        async for piece in plane.audit.export(session):
            output.write(piece)
            # This much holds the trailer, wherever the network cut the pieces.
            last = (last + piece)[-1000:]
        output.flush()
        return last

    with contextlib.nullcontext(sys.stdout.buffer) if file == "-" else new_file(file) as output:
        trailer = _trailer(run(lambda plane: copy(plane, output)))
    typer.echo(f"{trailer['chains']} chains, {trailer['entries']} entries", err=True)


def _trailer(last: bytes) -> dict[str, Any]:
    with contextlib.suppress(orjson.JSONDecodeError):
        line: dict[str, Any] = orjson.loads(last.splitlines()[-1] if last else b"")
        if last.endswith(b"\n") and line.get("type") == "trailer":
            return line
    raise Unavailable("The export was cut off.", code="cut_off", hint="Ask again.")
