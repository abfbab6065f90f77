"""`cortex session` and `call`: conversations, what is allowed in them, and calls of agents that run elsewhere."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import typer
from typer import Option

from cortex_plane.calls import routes as call_routes
from cortex_plane.calls.model import Permissions
from cortex_plane.cli import terminal
from cortex_plane.cli.plane import harmless
from cortex_plane.cli.terminal import AsJson, Atlases, Limit, add_command, say, show_record
from cortex_plane.jobs import routes as job_routes
from cortex_plane.sessions import routes
from cortex_plane.sessions.model.sessions import SessionChange, SessionDraft, SessionKind

session_app = typer.Typer(no_args_is_help=True, help="Sessions: the conversation of one user with one agent.")


@session_app.command("create")
def create_session(
    agent: str,
    title: str | None = None,
    atlas: Atlases = None,
    external: Annotated[bool, Option(help="The agent runs elsewhere.")] = False,
    outside_id: Annotated[str | None, Option(help="With --external: find the one that is open under this id.")] = None,
    on_behalf_of: Annotated[
        str | None, Option(help="With --external and a service key: the member for whom, by id or as CONNECTION:NAME.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Open a session with an agent."""
    draft = SessionDraft(
        agent=agent,
        kind=SessionKind.EXTERNAL if external else SessionKind.PROGRAMMATIC,
        title=title,
        atlases=atlas or [],
        outside_id=outside_id,
        on_behalf_of=on_behalf_of,
    )
    show_record(lambda plane: plane.sessions.create(draft), as_json)


add_command(
    session_app,
    "list",
    routes.LIST_SESSIONS,
    status="",
    agent="Id or slug.",
    member="",
    outside_id="What the agent's own world calls it.",
)
add_command(session_app, "show", routes.GET_SESSION)
add_command(session_app, "state", routes.GET_SESSION_STATE, "What an agent elsewhere saved of a run that waits.")


@session_app.command("rename")
def rename_session(session_id: UUID, title: str, as_json: AsJson = False) -> None:
    show_record(lambda plane: plane.sessions.update(session_id, SessionChange(title=title)), as_json)


@session_app.command("send")
def send_message(session_id: UUID, text: str, idempotency_key: str | None = None, as_json: AsJson = False) -> None:
    """Add a message; a job will read it."""
    show_record(lambda plane: plane.sessions.send(session_id, text, idempotency_key=idempotency_key), as_json)


add_command(session_app, "messages", routes.LIST_MESSAGES, "What was said, in order.", limit=200)


@session_app.command("memory")
def show_memory(
    session_id: UUID,
    history: Annotated[bool, Option(help="Also the older ones that it was made from.")] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """What is kept of the part that no longer fits into the model's window. A model wrote it."""
    memories = terminal.fetch_list(lambda plane: plane.sessions.memory(session_id, limit if history else 1))
    if history or not memories:
        terminal.print_table(memories, routes.LIST_MEMORIES.columns, as_json)
    else:
        terminal.print_record(memories[0], as_json)


@session_app.command("permissions")
def list_permissions(session_id: UUID, as_json: AsJson = False) -> None:
    """What is allowed in a session now, and which gate, capability or policy did it."""
    show_record(lambda plane: plane.sessions.permissions(session_id), as_json, _show_permissions)


def _show_permissions(permissions: Permissions) -> None:
    terminal.print_table(permissions.actions, "action state whom rule reason risk")
    if permissions.more_actions:
        say(f"and {permissions.more_actions} more actions")
    questions = (f"{gate['gate']}, the {gate['whom']}: {'; '.join(gate['questions'])}" for gate in permissions.asking)
    _show_part("asked first", [*questions])
    if permissions.more_asking:
        say(f"  and {permissions.more_asking} more gates")
    _show_part("capabilities", [_capability_line(capability) for capability in permissions.capabilities])
    if permissions.more_capabilities:
        say(f"  and {permissions.more_capabilities} more")
    _show_part("gates that wait for an answer", [_waiting_line(gate) for gate in permissions.waiting])
    _show_part("gates that are shut", [f"{gate['gate']}: {gate['reason']}" for gate in permissions.shut])
    _show_part("gates passed", sorted(permissions.passed))
    texts = (*permissions.contexts, *permissions.guidance)
    _show_part("told", [f"{text['id']} (by {text['by']})" for text in texts])
    _show_part("limits", [_limit_line(limit.kind, limit.name, limit.detail) for limit in permissions.limits])


def _show_part(title: str, lines: list[str]) -> None:
    if not lines:
        return
    terminal.console().print()
    terminal.console().print(title, style="dim")
    for line in lines:
        say(f"  {harmless(line)}")


def _capability_line(capability: dict[str, Any]) -> str:
    by = f", by {capability['by']}" if capability["by"] else ""
    return f"{capability['id']}: {'open' if capability['open'] else 'locked'}{by}"


def _waiting_line(gate: dict[str, Any]) -> str:
    before = f" before {gate['action']} (call {gate['call']})" if gate["call"] else ""
    questions = "; ".join(question["question"] for question in gate["questions"])
    return f"{gate['atlas']}/{gate['gate']}{before}: {questions}"


def _limit_line(kind: str, name: str, detail: dict[str, Any]) -> str:
    return f"{kind} {name}: " + ", ".join(f"{key} {value}" for key, value in detail.items() if value is not None)


add_command(
    session_app, "pause", job_routes.PAUSE_SESSION,
    "Hold a session: its jobs wait until it is resumed. Those that run stop at their next boundary.",
    terminal.show_session_receipt, body=terminal.PAUSE,
)  # fmt: skip
add_command(
    session_app, "resume", job_routes.RESUME_SESSION, "Let a held session go on.",
    terminal.show_session_receipt, body=terminal.RESUMPTION,
)  # fmt: skip
add_command(
    session_app, "terminate", routes.TERMINATE_SESSION, "End a session for good and cancel its open jobs.", body=terminal.REASON
)  # fmt: skip

call_app = typer.Typer(no_args_is_help=True, help="Calls of agents that run elsewhere and ask before they act.")

add_command(call_app, "list", call_routes.LIST_CALLS, "Newest first.", session="Only those of this session.", status="")


@call_app.command("decided")
def list_decided_calls(
    agent: Annotated[str | None, Option(help="Id or slug.")] = None,
    since: Annotated[str | None, Option(help="Not those before, such as 2026-01-31T09:00:00Z.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Those whose request has ended, the oldest decision first."""
    start = None if since is None else datetime.fromisoformat(since)
    rows = terminal.fetch_list(lambda plane: plane.calls.list_decided(limit, agent=agent, since=start))
    terminal.print_table(rows, call_routes.LIST_DECIDED_CALLS.columns, as_json)


@call_app.command("show")
def show_call(
    call_id: UUID,
    wait: Annotated[float, Option(help="Wait so many seconds for a decision.", min=0, max=60)] = 0,
    as_json: AsJson = False,
) -> None:
    """One call, and what its agent is to do next."""
    show_record(lambda plane: plane.calls.get(call_id, wait=wait), as_json)
