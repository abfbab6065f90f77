from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cortex_plane.agents.model.agents import AgentChange, AgentDraft, AgentStatus, ModelConfig, ResourceLimits
from cortex_plane.cli.output import AsJson, Limit, said, show_many, show_one
from cortex_plane.cli.plane import collect, run
from cortex_plane.kernel.canonical import unique
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import parse

app = typer.Typer(no_args_is_help=True, help="Agents: reusable definitions with immutable config versions.")

Channels = Annotated[
    list[str] | None, typer.Option("--channel", help="A channel it may be reached on; none means all.")
]


@app.command()
def create(
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


@app.command("list")
def list_agents(
    status: Annotated[AgentStatus | None, typer.Option(help="Archived ones are hidden otherwise.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    found = run(lambda plane: collect(plane.agents.list(limit, status)))
    show_many(found, ["id", "slug", "name", "status", "role", "config_version"], as_json)


@app.command()
def show(agent: str, as_json: AsJson = False) -> None:
    show_one(run(lambda plane: plane.agents.get(agent)), as_json)


@app.command()
def update(
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


@app.command()
def versions(agent: str, limit: Limit = 50, as_json: AsJson = False) -> None:
    """The configurations it has had, newest first."""
    found = run(lambda plane: collect(plane.agents.versions(agent, limit)))
    show_many(found, ["version", "model_config", "created_by", "created_at"], as_json)


@app.command()
def delete(agent: str) -> None:
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
