"""`cortex session` and `call`: conversations, what is allowed in them, and calls of agents that run elsewhere."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import typer
from rich.text import Text

from cortex_plane.calls.model import Permissions
from cortex_plane.cli.output import AsJson, Atlases, Limit, console, harmless, said, show_many, show_one
from cortex_plane.cli.plane import collect, run
from cortex_plane.cli.steering import show_session_receipt
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.sessions.model.sessions import SessionChange, SessionDraft, SessionStatus


def show_permissions(found: Permissions, as_json: bool) -> None:
    if as_json:
        show_one(found, as_json)
        return
    show_many(found.actions, ["action", "state", "whom", "rule", "reason", "risk"], as_json)
    if found.more_actions:
        said(f"and {found.more_actions} more actions")
    _show_part("asked first", [_question_line(each) for each in found.asking])
    if found.more_asking:
        said(f"  and {found.more_asking} more gates")
    _show_part("capabilities", [_capability_line(each) for each in found.capabilities])
    if found.more_capabilities:
        said(f"  and {found.more_capabilities} more")
    _show_part("gates that wait for an answer", [_waiting_line(each) for each in found.waiting])
    _show_part("gates that are shut", [f"{each['gate']}: {each['reason']}" for each in found.shut])
    _show_part("gates passed", sorted(found.passed))
    _show_part("told", [f"{each['id']} (by {each['by']})" for each in (*found.contexts, *found.guidance)])
    _show_part("limits", [_limit_line(each.kind, each.name, each.detail) for each in found.limits])


def _show_part(title: str, lines: list[str]) -> None:
    if not lines:
        return
    console().print()
    console().print(Text(title, style="dim"))
    for line in lines:
        said(f"  {harmless(line)}")


def _capability_line(each: dict[str, Any]) -> str:
    by = f", by {each['by']}" if each["by"] else ""
    return f"{each['id']}: {'open' if each['open'] else 'locked'}{by}"


def _question_line(each: dict[str, Any]) -> str:
    return f"{each['gate']}, the {each['whom']}: {'; '.join(each['questions'])}"


def _waiting_line(each: dict[str, Any]) -> str:
    before = f" before {each['action']} (call {each['call']})" if each["call"] else ""
    asked = "; ".join(question["question"] for question in each["questions"])
    return f"{each['atlas']}/{each['gate']}{before}: {asked}"


def _limit_line(kind: str, name: str, detail: dict[str, Any]) -> str:
    told = ", ".join(f"{key} {value}" for key, value in detail.items() if value is not None)
    return f"{kind} {name}: {told}"


session_app = typer.Typer(no_args_is_help=True, help="Sessions: the conversation of one user with one agent.")


@session_app.command("create")
def create_session(
    agent: str,
    title: Annotated[str | None, typer.Option()] = None,
    atlas: Atlases = None,
    as_json: AsJson = False,
) -> None:
    """Open a session with an agent."""
    draft = SessionDraft(agent=agent, title=title, atlases=atlas or [])
    show_one(run(lambda plane: plane.sessions.create(draft)), as_json)


@session_app.command("list")
def list_sessions(
    status: Annotated[SessionStatus | None, typer.Option()] = None,
    agent: Annotated[str | None, typer.Option(help="Id or slug.")] = None,
    member: Annotated[UUID | None, typer.Option()] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    found = run(
        lambda plane: collect(plane.sessions.list(limit, status=status, agent=agent, member_id=member))
    )
    show_many(found, ["id", "kind", "status", "title", "last_activity_at"], as_json)


@session_app.command("show")
def show_session(session_id: UUID, as_json: AsJson = False) -> None:
    show_one(run(lambda plane: plane.sessions.get(session_id)), as_json)


@session_app.command("rename")
def rename_session(session_id: UUID, title: str, as_json: AsJson = False) -> None:
    show_one(run(lambda plane: plane.sessions.update(session_id, SessionChange(title=title))), as_json)


@session_app.command("send")
def send_message(
    session_id: UUID,
    text: str,
    idempotency_key: Annotated[str | None, typer.Option()] = None,
    as_json: AsJson = False,
) -> None:
    """Add a message; a job will read it."""
    delivery = run(lambda plane: plane.sessions.send(session_id, text, idempotency_key=idempotency_key))
    show_one(delivery, as_json)


@session_app.command("messages")
def list_messages(session_id: UUID, limit: Limit = 200, as_json: AsJson = False) -> None:
    """What was said, in order."""
    found = run(lambda plane: collect(plane.sessions.messages(session_id, limit)))
    show_many(found, ["seq", "role", "text", "created_at"], as_json)


@session_app.command("memory")
def show_memory(
    session_id: UUID,
    history: Annotated[bool, typer.Option(help="Also the older ones that it was made from.")] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """What is kept of the part that no longer fits into the model's window. A model wrote it."""
    found = run(lambda plane: collect(plane.sessions.memory(session_id, limit if history else 1)))
    if history or not found:
        show_many(found, ["number", "message_seq", "summary", "facts", "created_at"], as_json)
    else:
        show_one(found[0], as_json)


@session_app.command("permissions")
def list_permissions(session_id: UUID, as_json: AsJson = False) -> None:
    """What is allowed in a session now, and which gate, capability or policy did it."""
    show_permissions(run(lambda plane: plane.sessions.permissions(session_id)), as_json)


@session_app.command("pause")
def pause_session(
    session_id: UUID, reason: Annotated[str | None, typer.Option()] = None, as_json: AsJson = False
) -> None:
    """Hold a session: its jobs wait until it is resumed. Those that run stop at their next boundary."""
    show_session_receipt(run(lambda plane: plane.sessions.pause(session_id, reason)), as_json)


@session_app.command("resume")
def resume_session(
    session_id: UUID, note: Annotated[str | None, typer.Option()] = None, as_json: AsJson = False
) -> None:
    """Let a held session go on."""
    show_session_receipt(run(lambda plane: plane.sessions.resume(session_id, note)), as_json)


@session_app.command("terminate")
def terminate_session(
    session_id: UUID, reason: Annotated[str | None, typer.Option()] = None, as_json: AsJson = False
) -> None:
    """End a session for good and cancel its open jobs."""
    show_one(run(lambda plane: plane.sessions.terminate(session_id, reason)), as_json)


call_app = typer.Typer(
    no_args_is_help=True, help="Calls of agents that run elsewhere and ask before they act."
)


@call_app.command("list")
def list_calls(
    session: Annotated[UUID | None, typer.Option(help="Only those of this session.")] = None,
    status: Annotated[CallStatus | None, typer.Option()] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Newest first."""
    found = run(lambda plane: collect(plane.calls.list(limit, session_id=session, status=status)))
    show_many(found, ["id", "agent", "tool", "status", "rule", "attempt", "key", "created_at"], as_json)


@call_app.command("show")
def show_call(
    call_id: UUID,
    wait: Annotated[float, typer.Option(help="Wait so many seconds for a decision.", min=0, max=60)] = 0,
    as_json: AsJson = False,
) -> None:
    """One call, and what its agent is to do next."""
    show_one(run(lambda plane: plane.calls.get(call_id, wait=wait)), as_json)
