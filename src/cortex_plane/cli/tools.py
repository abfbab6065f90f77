from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from cortex_plane.agents.model.tools import ConfirmationDraft, Risk, ToolConfirmation, ToolVersion
from cortex_plane.cli.output import AsJson, Limit, harmless, said, show_many, show_one, tell
from cortex_plane.cli.plane import collect, run
from cortex_plane.client import Client
from cortex_plane.kernel.errors import Conflict, InvalidInput, NotFound

app = typer.Typer(no_args_is_help=True, help="Tools: what agents may call, as workers published it.")

Name = Annotated[str, typer.Argument(help="The tool, as `cortex tool list` names it: files.read_query.")]
SHORT = 12
"""So much of a digest is shown, and enough to name a version."""
OfApp = Annotated[str | None, typer.Option("--app", help="Where several apps have such a tool: which one.")]


@app.command("list")
def list_tools(
    of_app: Annotated[
        str | None, typer.Option("--app", help="Every version of this app's tools: what changed, and when.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The newest version of each tool, and which MCP servers are down; with --app, every version of its tools."""
    if of_app is not None:
        versions = run(lambda plane: plane.tools.versions(of_app))
        columns = [
            "name", "digest", "published_at", "newest", "changed", "server", "implementation", "hints", "description",
        ]  # fmt: skip
        show_many(versions, columns, as_json)
        _tell_of_servers(of_app, as_json)
        return
    found = run(lambda plane: plane.tools.list())
    columns = [
        "app", "name", "digest", "risk", "read_only", "hints", "on_uncertain", "timeout_seconds", "description",
    ]  # fmt: skip
    show_many(found if as_json else _shortened(found), columns, as_json)
    _tell_of_servers(None, as_json)


def _shortened(found: Sequence[ToolVersion]) -> Sequence[Any]:
    return [replace(tool, digest=tool.digest[:SHORT]) for tool in found]


def _tell_of_servers(of_app: str | None, as_json: bool) -> None:
    if as_json:
        return
    for server in run(lambda plane: plane.tools.servers()):
        if server.state != "up" and of_app in (None, server.app):
            why = f", {harmless(server.reason)}" if server.reason else ""
            since = server.since.isoformat(timespec="seconds")
            on = f" on {harmless(server.worker)}" if server.worker else ""
            place = f"{server.name} of {server.app}{on}"
            said(f"server {place}: {server.state}, since {since}{why}")


@app.command("servers")
def servers(as_json: AsJson = False) -> None:
    """The MCP servers of the workers that are there: up or down, since when, and why.

    Platform keys see the names of workers and the whole reasons.
    """
    columns = ["app", "name", "worker", "state", "since", "tools", "reason"]
    show_many(run(lambda plane: plane.tools.servers()), columns, as_json)


@app.command("confirm")
def confirm(
    name: Name,
    read_only: Annotated[bool, typer.Option("--read-only", help="It changes nothing.")] = False,
    idempotent: Annotated[
        bool,
        typer.Option("--idempotent", help="Called twice with the same arguments, it does the thing once."),
    ] = False,
    risk: Annotated[Risk | None, typer.Option(help="How much harm it can do.")] = None,
    of_app: OfApp = None,
    digest: Annotated[
        str | None,
        typer.Option(help=f"The version that you looked at, or the first {SHORT} characters of it."),
    ] = None,
    note: Annotated[str | None, typer.Option(help="For the audit trail.")] = None,
    as_json: AsJson = False,
) -> None:
    """Vouch for what a tool of an MCP server is, for your org, until the tool changes. For stewards and admins.

    The tool is shown, and exactly the version that was shown is confirmed: where it changed meanwhile, nothing is.
    """
    tool = run(lambda plane: _looked_at(plane, name, of_app, digest))
    draft = ConfirmationDraft(
        tool=name, app=tool.app, digest=tool.digest, read_only=read_only, idempotent=idempotent, risk=risk, note=note
    )  # fmt: skip
    if not as_json:
        _show(tool)
        if digest is None and sys.stdin.isatty() and sys.stdout.isatty():
            typer.confirm("Confirm exactly this?", abort=True)
    made = run(lambda plane: plane.tool_confirmations.confirm(draft))
    if as_json:
        show_one(made, True)
        return
    words = [
        *(["read-only"] if made.read_only else []),
        *(["idempotent"] if made.idempotent else []),
        *([f"of {made.risk} risk"] if made.risk else []),
    ]
    said(f"{made.tool_name} ({made.digest[:12]}) is {', '.join(words)} for your org, until it changes")


async def _looked_at(plane: Client, name: str, of_app: str | None, digest: str | None) -> ToolVersion:
    found = [each for each in await plane.tools.list() if each.name == name and of_app in (None, each.app)]
    if not found:
        raise NotFound(
            f"No worker has published a tool `{name}`.",
            code="tool_not_found",
            hint="`cortex tool list` names those that there are.",
        )
    if len(found) > 1:
        raise InvalidInput(
            f"Several apps have a tool `{name}`: {', '.join(each.app for each in found[:10])}.",
            code="app_needed",
            hint="Name the app that you mean with --app.",
        )
    tool = found[0]
    if digest is not None and (len(digest) < SHORT or not tool.digest.startswith(digest)):
        raise Conflict(
            f"`{name}` is not of the version {digest[:64]}: its newest one is {tool.digest}. It has changed since you looked.",
            code="tool_changed",
            hint="Look at it again with `cortex tool list`, then confirm that version.",
        )
    return tool


def _show(tool: ToolVersion) -> None:
    hints = ", ".join(f"{name}={str(value).lower()}" for name, value in (tool.hints or {}).items())
    tell(f"tool         {tool.name} of the app {tool.app}, offered by {harmless(str(tool.server))}")
    tell(f"server says  {harmless(tool.implementation or '–')}")
    tell(f"description  {harmless(tool.description)}")
    tell(f"hints        {harmless(hints) or 'none'} (the server's own words)")
    tell(f"digest       {tool.digest}")


@app.command("unconfirm")
def unconfirm(name: Name, of_app: OfApp = None, as_json: AsJson = False) -> None:
    """Take it back: the tool counts as having side effects again."""
    revoked = run(lambda plane: _unconfirm(plane, name, of_app))
    if as_json:
        show_one(revoked, True)
        return
    said(f"{revoked.tool_name} counts as having side effects again")


async def _unconfirm(plane: Client, name: str, of_app: str | None) -> ToolConfirmation:
    async for held in plane.tool_confirmations.list(holding=True):
        if held.tool_name == name and of_app in (None, held.app):
            return await plane.tool_confirmations.revoke(held.id)
    raise NotFound(
        f"Nothing is confirmed about `{name}`.",
        code="tool_confirmation_not_found",
        hint="`cortex tool confirmations` lists what is.",
    )


@app.command("confirmations")
def confirmations(
    every: Annotated[bool, typer.Option("--all", help="Also what was revoked or replaced.")] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """What was confirmed, newest first; where `current` is false the tool has changed, and is asked about again."""
    found = run(lambda plane: collect(plane.tool_confirmations.list(limit, holding=not every)))
    columns = [
        "id", "app", "tool_name", "read_only", "idempotent", "risk", "current", "confirmed_by", "created_at",
        "revoked_at",
    ]  # fmt: skip
    show_many(found, columns, as_json)
