"""`cortex agent` and `tool`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from cortex_plane.agents.model.agents import AgentChange, AgentDraft, AgentStatus, ModelConfig, ResourceLimits
from cortex_plane.agents.model.tools import ConfirmationDraft, Risk, ToolConfirmation, ToolVersion
from cortex_plane.cli.output import AsJson, Limit, harmless, said, show_many, show_one, tell
from cortex_plane.cli.plane import collect, run
from cortex_plane.client import Client
from cortex_plane.kernel.canonical import unique
from cortex_plane.kernel.errors import Conflict, InvalidInput, NotFound
from cortex_plane.kernel.fields import parse

agent_app = typer.Typer(
    no_args_is_help=True, help="Agents: reusable definitions with immutable config versions."
)

Channels = Annotated[
    list[str] | None, typer.Option("--channel", help="A channel it may be reached on; none means all.")
]


@agent_app.command("create")
def create_agent(
    slug: str,
    model: Annotated[str, typer.Option(help="The model's identifier.")],
    name: Annotated[str | None, typer.Option(help="A name for people; the slug if left out.")] = None,
    role: Annotated[str, typer.Option(help="What it does: DevOps, Research, …")] = "Assistant",
    team: Annotated[str, typer.Option(help="The team's id or slug.")] = "main",
    description: Annotated[str | None, typer.Option()] = None,
    system_prompt: Annotated[str | None, typer.Option()] = None,
    temperature: Annotated[float | None, typer.Option()] = None,
    max_tokens: Annotated[int | None, typer.Option()] = None,
    max_concurrent_jobs: Annotated[int, typer.Option()] = 5,
    timeout_seconds: Annotated[int, typer.Option()] = 3600,
    app_name: Annotated[
        str | None, typer.Option("--app", help="The app with its tools; workers load it.")
    ] = None,
    run_name: Annotated[
        str | None,
        typer.Option("--run", help="The function of the app that is the agent, where it is written as code."),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(
            help="For the model `scripted`: a JSON file with a list of turns.", exists=True, dir_okay=False
        ),
    ] = None,
    skills: Annotated[Path | None, typer.Option(help="A JSON file.", exists=True, dir_okay=False)] = None,
    channel: Channels = None,
    as_json: AsJson = False,
) -> None:
    """Create an agent."""
    draft = AgentDraft(
        name=name or slug,
        slug=slug,
        role=role,
        team=team,
        description=description,
        model_config=ModelConfig(
            model=model,
            temperature=temperature,
            max_tokens=max_tokens,
            system_prompt=system_prompt,
            script=_read(script) if script else None,
        ),
        skill_config={
            **(_json(skills) or {}),
            **({"app": app_name} if app_name else {}),
            **({"run": run_name} if run_name else {}),
        },
        resource_limits=ResourceLimits(
            max_concurrent_jobs=max_concurrent_jobs, timeout_seconds=timeout_seconds
        ),
        channel_permissions=channel or [],
    )
    show_one(run(lambda plane: plane.agents.create(draft)), as_json)


@agent_app.command("list")
def list_agents(
    status: Annotated[AgentStatus | None, typer.Option(help="Archived ones are hidden otherwise.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    found = run(lambda plane: collect(plane.agents.list(limit, status)))
    show_many(found, ["id", "slug", "name", "status", "role", "config_version"], as_json)


@agent_app.command("show")
def show_agent(agent: str, as_json: AsJson = False) -> None:
    show_one(run(lambda plane: plane.agents.get(agent)), as_json)


@agent_app.command("update")
def update_agent(
    agent: str,
    name: Annotated[str | None, typer.Option()] = None,
    role: Annotated[str | None, typer.Option()] = None,
    team: Annotated[str | None, typer.Option()] = None,
    status: Annotated[AgentStatus | None, typer.Option()] = None,
    description: Annotated[str | None, typer.Option()] = None,
    model_config: Annotated[Path | None, typer.Option(help="A JSON file.", exists=True)] = None,
    skill_config: Annotated[Path | None, typer.Option(help="A JSON file.", exists=True)] = None,
    resource_limits: Annotated[Path | None, typer.Option(help="A JSON file.", exists=True)] = None,
    channel: Channels = None,
    revision: Annotated[int | None, typer.Option(help="Refuse if it changed since this revision.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change an agent. A changed configuration becomes a new version."""
    model, limits = _json(model_config), _json(resource_limits)
    change = AgentChange(
        name=name,
        role=role,
        team=team,
        status=status,
        description=description,
        model_config=parse(ModelConfig, model) if model is not None else None,
        skill_config=_json(skill_config),
        resource_limits=parse(ResourceLimits, limits) if limits is not None else None,
        channel_permissions=channel,
    )
    show_one(run(lambda plane: plane.agents.update(agent, change, revision=revision)), as_json)


@agent_app.command("versions")
def list_agent_versions(agent: str, limit: Limit = 50, as_json: AsJson = False) -> None:
    """The configurations it has had, newest first."""
    found = run(lambda plane: collect(plane.agents.versions(agent, limit)))
    show_many(found, ["version", "model_config", "created_by", "created_at"], as_json)


@agent_app.command("delete")
def delete_agent(agent: str) -> None:
    """Delete an agent that was never used; archive it otherwise."""
    run(lambda plane: plane.agents.delete(agent))
    said(f"deleted {agent}")


def _json(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    found = _read(path)
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} holds no JSON object.", hint="Correct the file.")
    return found


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(), object_pairs_hook=unique)
    except ValueError as error:
        raise InvalidInput(f"{path} is not valid JSON: {error}.", hint="Correct the file.") from error


tool_app = typer.Typer(no_args_is_help=True, help="Tools: what agents may call, as workers published it.")

ToolName = Annotated[str, typer.Argument(help="The tool, as `cortex tool list` names it: files.read_query.")]
DIGEST_SHOWN = 12
"""So much of a digest is shown, and enough to name a version."""
OfApp = Annotated[str | None, typer.Option("--app", help="Where several apps have such a tool: which one.")]


@tool_app.command("list")
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
        _show_servers_down(of_app, as_json)
        return
    found = run(lambda plane: plane.tools.list())
    columns = [
        "app", "name", "digest", "risk", "read_only", "hints", "on_uncertain", "timeout_seconds", "description",
    ]  # fmt: skip
    show_many(found if as_json else _shorten_digests(found), columns, as_json)
    _show_servers_down(None, as_json)


def _shorten_digests(found: Sequence[ToolVersion]) -> Sequence[Any]:
    return [replace(tool, digest=tool.digest[:DIGEST_SHOWN]) for tool in found]


def _show_servers_down(of_app: str | None, as_json: bool) -> None:
    if as_json:
        return
    for server in run(lambda plane: plane.tools.servers()):
        if server.state != "up" and of_app in (None, server.app):
            why = f", {harmless(server.reason)}" if server.reason else ""
            since = server.since.isoformat(timespec="seconds")
            on = f" on {harmless(server.worker)}" if server.worker else ""
            place = f"{server.name} of {server.app}{on}"
            said(f"server {place}: {server.state}, since {since}{why}")


@tool_app.command("servers")
def list_servers(as_json: AsJson = False) -> None:
    """The MCP servers of the workers that are there: up or down, since when, and why.

    Platform keys see the names of workers and the whole reasons.
    """
    columns = ["app", "name", "worker", "state", "since", "tools", "reason"]
    show_many(run(lambda plane: plane.tools.servers()), columns, as_json)


@tool_app.command("confirm")
def confirm_tool(
    name: ToolName,
    read_only: Annotated[bool, typer.Option("--read-only", help="It changes nothing.")] = False,
    idempotent: Annotated[
        bool,
        typer.Option("--idempotent", help="Called twice with the same arguments, it does the thing once."),
    ] = False,
    risk: Annotated[Risk | None, typer.Option(help="How much harm it can do.")] = None,
    of_app: OfApp = None,
    digest: Annotated[
        str | None,
        typer.Option(help=f"The version that you looked at, or the first {DIGEST_SHOWN} characters of it."),
    ] = None,
    note: Annotated[str | None, typer.Option(help="For the audit trail.")] = None,
    as_json: AsJson = False,
) -> None:
    """Vouch for what a tool of an MCP server is, for your org, until the tool changes. For stewards and admins.

    The tool is shown, and exactly the version that was shown is confirmed: where it changed meanwhile, nothing is.
    """
    tool = run(lambda plane: _find_tool(plane, name, of_app, digest))
    draft = ConfirmationDraft(
        tool=name, app=tool.app, digest=tool.digest, read_only=read_only, idempotent=idempotent, risk=risk, note=note
    )  # fmt: skip
    if not as_json:
        _show_tool(tool)
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


async def _find_tool(plane: Client, name: str, of_app: str | None, digest: str | None) -> ToolVersion:
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
    if digest is not None and (len(digest) < DIGEST_SHOWN or not tool.digest.startswith(digest)):
        raise Conflict(
            f"`{name}` is not of the version {digest[:64]}: its newest one is {tool.digest}. It has changed since you looked.",
            code="tool_changed",
            hint="Look at it again with `cortex tool list`, then confirm that version.",
        )
    return tool


def _show_tool(tool: ToolVersion) -> None:
    hints = ", ".join(f"{name}={str(value).lower()}" for name, value in (tool.hints or {}).items())
    tell(f"tool         {tool.name} of the app {tool.app}, offered by {harmless(str(tool.server))}")
    tell(f"server says  {harmless(tool.implementation or '–')}")
    tell(f"description  {harmless(tool.description)}")
    tell(f"hints        {harmless(hints) or 'none'} (the server's own words)")
    tell(f"digest       {tool.digest}")


@tool_app.command("unconfirm")
def unconfirm_tool(name: ToolName, of_app: OfApp = None, as_json: AsJson = False) -> None:
    """Take it back: the tool counts as having side effects again."""
    revoked = run(lambda plane: _revoke_confirmation(plane, name, of_app))
    if as_json:
        show_one(revoked, True)
        return
    said(f"{revoked.tool_name} counts as having side effects again")


async def _revoke_confirmation(plane: Client, name: str, of_app: str | None) -> ToolConfirmation:
    async for held in plane.tool_confirmations.list(holding=True):
        if held.tool_name == name and of_app in (None, held.app):
            return await plane.tool_confirmations.revoke(held.id)
    raise NotFound(
        f"Nothing is confirmed about `{name}`.",
        code="tool_confirmation_not_found",
        hint="`cortex tool confirmations` lists what is.",
    )


@tool_app.command("confirmations")
def list_confirmations(
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
