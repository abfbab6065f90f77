from __future__ import annotations

import getpass
import sys

import typer

from cortex_plane.cli.output import AsJson, said, show_many, show_one
from cortex_plane.cli.plane import run
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.tenancy.model.credentials import Provider

app = typer.Typer(no_args_is_help=True, help="The org's own keys for model providers.")

MOST = 1000


@app.command("set")
def set_key(provider: Provider, as_json: AsJson = False) -> None:
    """Set the org's own key, read from standard input: an argument would stay in the shell's history."""
    if sys.stdin.isatty():
        key = getpass.getpass(f"The key for {provider.value} (not shown): ")
    else:
        key = sys.stdin.read(MOST)
    if not key.strip():
        raise InvalidInput(
            "There is no key on standard input.",
            hint=f"Pipe it in: `cortex model-key set {provider.value} < FILE`.",
        )
    show_one(run(lambda plane: plane.model_keys.set(provider, key.strip())), as_json)


@app.command("list")
def list_keys(as_json: AsJson = False) -> None:
    found = run(lambda plane: plane.model_keys.list())
    show_many(found, ["provider", "last_characters", "set_by", "updated_at"], as_json)


@app.command("show")
def show(provider: Provider, as_json: AsJson = False) -> None:
    show_one(run(lambda plane: plane.model_keys.get(provider)), as_json)


@app.command("remove")
def remove(provider: Provider) -> None:
    """Within seconds no worker uses it any more."""
    run(lambda plane: plane.model_keys.remove(provider))
    said(f"The org's own key for {provider.value} is removed; the workers' is used, where they have one.")
