"""`cortex agent` and `tool`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from cortex_plane.agents import routes
from cortex_plane.agents.model.agents import AgentChange, AgentDraft, AgentStatus, ModelConfig, ResourceLimits
from cortex_plane.agents.model.tools import ConfirmationDraft, ToolConfirmation, ToolVersion
from cortex_plane.cli import terminal
from cortex_plane.cli.plane import harmless, run
from cortex_plane.cli.terminal import AsJson, Limit, add_command, say, show_record, show_table
from cortex_plane.client import Client
from cortex_plane.kernel.errors import Conflict, InvalidInput, NotFound
from cortex_plane.kernel.fields import Risk, parse

agent_app = typer.Typer(no_args_is_help=True, help="Agents: reusable definitions with immutable config versions.")

Channels = Annotated[
    list[str] | None,
    Option("--channel", help="A channel it may be reached on, `api` for this CLI and the API; none means all."),
]


@agent_app.command("create")
def create_agent(
    slug: str,
    model: Annotated[str, Option(help="The model's identifier.")],
    name: Annotated[str | None, Option(help="A name for people; the slug if left out.")] = None,
    role: Annotated[str, Option(help="What it does: DevOps, Research, …")] = "Assistant",
    team: Annotated[str, Option(help="The team's id or slug.")] = "main",
    description: str | None = None,
    system_prompt: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    max_concurrent_jobs: int = 5,
    timeout_seconds: int = 3600,
    app_name: Annotated[str | None, Option("--app", help="The app with its tools; workers load it.")] = None,
    run_name: Annotated[
        str | None, Option("--run", help="The function of the app that is the agent, where it is written as code.")
    ] = None,
    script: Annotated[
        Path | None,
        Option(help="For the model `scripted`: a JSON file with a list of turns.", exists=True, dir_okay=False),
    ] = None,
    skills: Annotated[Path | None, Option(help="A JSON file.", exists=True, dir_okay=False)] = None,
    channel: Channels = None,
    atlas: Annotated[
        list[str] | None, Option("--atlas", help="An atlas that its sessions are bound to. Any number of times.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create an agent."""
    draft = AgentDraft(
        name=name or slug, slug=slug, role=role, team=team, description=description,
        model_config=ModelConfig(
            model=model, temperature=temperature, max_tokens=max_tokens, system_prompt=system_prompt,
            script=_read_json(script) if script else None,
        ),
        skill_config={
            **(_read_object(skills) or {}),
            **({"app": app_name} if app_name else {}),
            **({"run": run_name} if run_name else {}),
            **({"atlases": atlas} if atlas else {}),
        },
        resource_limits=ResourceLimits(max_concurrent_jobs=max_concurrent_jobs, timeout_seconds=timeout_seconds),
        channel_permissions=channel or [],
    )  # fmt: skip
    show_record(lambda plane: plane.agents.create(draft), as_json)


REPEATS_STEPS = (
    "if a worker dies, steps of this agent's code that declare nothing run again; from the next release on, a person is asked instead."
    " Declare repeatable=True or on_uncertain at each step; `cortex doctor preflight --replay` lists such steps of open jobs."
)

add_command(agent_app, "list", routes.LIST_AGENTS, status="Archived ones are hidden otherwise.")


@agent_app.command("show")
def show_agent(agent: str, as_json: AsJson = False) -> None:
    """One agent."""
    record = show_record(lambda plane: plane.agents.get(agent), as_json)
    if record.repeats_steps and not as_json:
        terminal.print_warnings([REPEATS_STEPS])


@agent_app.command("update")
def update_agent(
    agent: str,
    name: str | None = None,
    role: str | None = None,
    team: str | None = None,
    status: AgentStatus | None = None,
    description: str | None = None,
    model_config: Annotated[Path | None, Option(help="A JSON file.", exists=True)] = None,
    skill_config: Annotated[Path | None, Option(help="A JSON file.", exists=True)] = None,
    resource_limits: Annotated[Path | None, Option(help="A JSON file.", exists=True)] = None,
    channel: Channels = None,
    revision: Annotated[int | None, Option(help="Refuse if it changed since this revision.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change an agent. A changed configuration becomes a new version."""
    model, limits = _read_object(model_config), _read_object(resource_limits)
    change = AgentChange(
        name=name, role=role, team=team, status=status, description=description,
        model_config=parse(ModelConfig, model) if model is not None else None,
        skill_config=_read_object(skill_config),
        resource_limits=parse(ResourceLimits, limits) if limits is not None else None,
        channel_permissions=channel,
    )  # fmt: skip
    show_record(lambda plane: plane.agents.update(agent, change, revision=revision), as_json)


add_command(agent_app, "versions", routes.LIST_AGENT_VERSIONS, "The configurations it has had, newest first.")


@agent_app.command("delete")
def delete_agent(agent: str) -> None:
    """Delete an agent that was never used; archive it otherwise."""
    run(lambda plane: plane.agents.delete(agent))
    say(f"deleted {agent}")


def _read_object(path: Path | None) -> dict[str, Any] | None:
    value = None if path is None else _read_json(path)
    if path is None or isinstance(value, dict):
        return value
    raise InvalidInput(f"{path} holds no JSON object.", hint="Correct the file.")


def _read_json(path: Path) -> Any:
    return terminal.parse_json(path.read_text(), f"{path} is not valid JSON", hint="Correct the file.")


tool_app = typer.Typer(no_args_is_help=True, help="Tools: what agents may call, as workers published it.")

ToolName = Annotated[str, Argument(help="The tool, as `cortex tool list` names it: files.read_query.")]
DIGEST_SHOWN = 12
"""Characters of a digest that are shown, and that are enough to name a version."""
OfApp = Annotated[str | None, Option("--app", help="Where several apps have such a tool: which one.")]


@tool_app.command("list")
def list_tools(
    of_app: Annotated[
        str | None, Option("--app", help="Every version of this app's tools: what changed, and when.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The newest version of each tool, and which MCP servers are down; with --app, every version of its tools."""
    if of_app is not None:
        show_table(routes.LIST_TOOL_VERSIONS, lambda plane: plane.tools.versions(of_app), as_json)
    else:
        tools = run(lambda plane: plane.tools.list())
        if not as_json:
            tools = [replace(tool, digest=tool.digest[:DIGEST_SHOWN]) for tool in tools]
        terminal.print_table(tools, routes.LIST_TOOLS.columns, as_json)
    if not as_json:
        _show_servers_down(of_app)


def _show_servers_down(of_app: str | None) -> None:
    for server in run(lambda plane: plane.tools.servers()):
        if server.state != "up" and of_app in (None, server.app):
            why = f", {harmless(server.reason)}" if server.reason else ""
            since = server.since.isoformat(timespec="seconds")
            on = f" on {harmless(server.worker)}" if server.worker else ""
            place = f"{server.name} of {server.app}{on}"
            say(f"server {place}: {server.state}, since {since}{why}")


add_command(
    tool_app,
    "servers",
    routes.LIST_TOOL_SERVERS,
    """The MCP servers of the workers that are there: up or down, since when, and why.

    Platform keys see the names of workers and the whole reasons.""",
)


@tool_app.command("confirm")
def confirm_tool(
    name: ToolName,
    read_only: Annotated[bool, Option("--read-only", help="It changes nothing.")] = False,
    idempotent: Annotated[
        bool, Option("--idempotent", help="Called twice with the same arguments, it does the thing once.")
    ] = False,
    risk: Annotated[Risk | None, Option(help="How much harm it can do.")] = None,
    of_app: OfApp = None,
    digest: Annotated[
        str | None, Option(help=f"The version that you looked at, or the first {DIGEST_SHOWN} characters of it.")
    ] = None,
    note: Annotated[str | None, Option(help="For the audit trail.")] = None,
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
    show_record(lambda plane: plane.tool_confirmations.confirm(draft), as_json, _show_confirmation)


def _show_confirmation(confirmation: ToolConfirmation) -> None:
    words = {
        "read-only": confirmation.read_only,
        "idempotent": confirmation.idempotent,
        f"of {confirmation.risk} risk": confirmation.risk,
    }
    tool = f"{confirmation.tool_name} ({confirmation.digest[:DIGEST_SHOWN]})"
    properties = ", ".join(word for word, holds in words.items() if holds)
    say(f"{tool} is {properties} for your org, until it changes")


async def _find_tool(plane: Client, name: str, of_app: str | None, digest: str | None) -> ToolVersion:
    tools = [tool for tool in await plane.tools.list() if tool.name == name and of_app in (None, tool.app)]
    if not tools:
        raise NotFound(
            f"No worker has published a tool `{name}`.",
            code="tool_not_found",
            hint="`cortex tool list` names those that there are.",
        )
    if len(tools) > 1:
        raise InvalidInput(
            f"Several apps have a tool `{name}`: {', '.join(tool.app for tool in tools[:10])}.",
            code="app_needed",
            hint="Name the app that you mean with --app.",
        )
    tool = tools[0]
    if digest is not None and (len(digest) < DIGEST_SHOWN or not tool.digest.startswith(digest)):
        raise Conflict(
            f"`{name}` is not of the version {digest[:64]}: its newest one is {tool.digest}. It has changed since you looked.",
            code="tool_changed",
            hint="Look at it again with `cortex tool list`, then confirm that version.",
        )
    return tool


def _show_tool(tool: ToolVersion) -> None:
    hints = ", ".join(f"{name}={str(value).lower()}" for name, value in (tool.hints or {}).items())
    terminal.print_line(f"tool         {tool.name} of the app {tool.app}, offered by {harmless(str(tool.server))}")
    terminal.print_line(f"server says  {harmless(tool.implementation or '–')}")
    terminal.print_line(f"description  {harmless(tool.description)}")
    terminal.print_line(f"hints        {harmless(hints) or 'none'} (the server's own words)")
    terminal.print_line(f"digest       {tool.digest}")


@tool_app.command("unconfirm")
def unconfirm_tool(name: ToolName, of_app: OfApp = None, as_json: AsJson = False) -> None:
    """Take it back: the tool counts as having side effects again."""

    def show(confirmation: ToolConfirmation) -> None:
        say(f"{confirmation.tool_name} counts as having side effects again")

    show_record(lambda plane: _revoke_confirmation(plane, name, of_app), as_json, show)


async def _revoke_confirmation(plane: Client, name: str, of_app: str | None) -> ToolConfirmation:
    async for confirmation in plane.tool_confirmations.list(holding=True):
        if confirmation.tool_name == name and of_app in (None, confirmation.app):
            return await plane.tool_confirmations.revoke(confirmation.id)
    raise NotFound(
        f"Nothing is confirmed about `{name}`.",
        code="tool_confirmation_not_found",
        hint="`cortex tool confirmations` lists what is.",
    )


@tool_app.command("confirmations")
def list_confirmations(
    every: Annotated[bool, Option("--all", help="Also what was revoked or replaced.")] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """What was confirmed, newest first; where `current` is false the tool has changed, and is asked about again."""
    show_table(
        routes.LIST_CONFIRMATIONS, lambda plane: plane.tool_confirmations.list(limit, holding=not every), as_json
    )
