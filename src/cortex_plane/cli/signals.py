from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from cortex_plane.cli.output import AsJson, Limit, harmless, said, show_many, show_one
from cortex_plane.cli.plane import collect, run
from cortex_plane.jobs.model.journal import MAX_PAYLOAD_BYTES
from cortex_plane.kernel.canonical import unique
from cortex_plane.kernel.errors import InvalidInput

app = typer.Typer(no_args_is_help=True, help="Signals: tell jobs that wait what happened.")


@app.command()
def send(
    name: Annotated[str, typer.Argument(help="What happened: payment.received")],
    key: Annotated[str, typer.Argument(help="To which one: order-4711")],
    payload: Annotated[
        str, typer.Option(help="JSON that the jobs are given; - reads it from stdin.")
    ] = "null",
    idempotency_key: Annotated[
        str | None, typer.Option(help="Repeat safely: one key has one effect.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Wake every job that waits for this name and key, now or later. The first payload stays."""
    given = _payload(payload)
    receipt = run(lambda plane: plane.signals.send(name, key, given, idempotency_key=idempotency_key))
    if as_json:
        show_one(receipt, True)
        return
    jobs = f"{receipt.woken} job{'' if receipt.woken == 1 else 's'}"
    what = f"{harmless(name)} {harmless(key)}"
    said(
        f"sent {what}: {jobs} waited for it"
        if receipt.changed
        else f"{what} was sent before; nothing changed"
    )


@app.command("list")
def list_signals(
    name: Annotated[str | None, typer.Option(help="Only those with this name.")] = None,
    key: Annotated[str | None, typer.Option(help="Only those with this key.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """What was sent, newest first."""
    found = run(lambda plane: collect(plane.signals.list(limit, name=name, key=key)))
    show_many(found, ["created_at", "name", "key", "sent_by", "payload", "id"], as_json)


def _payload(text: str) -> Any:
    # One more than fits tells that it does not; nobody reads a stream without end.
    given = sys.stdin.read(MAX_PAYLOAD_BYTES * 2 + 1) if text == "-" else text
    try:
        return json.loads(given, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise InvalidInput(
            "--payload is not JSON.",
            hint="""Quote it for the shell: --payload '{"paid": true}'; or pipe it: --payload -""",
        ) from None
