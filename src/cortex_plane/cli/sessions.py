from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from cortex_plane.cli.output import AsJson, Atlases, Limit, show_many, show_one
from cortex_plane.cli.permissions import show_permissions
from cortex_plane.cli.plane import collect, run
from cortex_plane.cli.receipts import show_session_receipt
from cortex_plane.sessions.model.sessions import SessionChange, SessionDraft, SessionStatus

app = typer.Typer(no_args_is_help=True, help="Sessions: the conversation of one user with one agent.")


@app.command("create")
def create(
    agent: str,
    title: Annotated[str | None, typer.Option()] = None,
    atlas: Atlases = None,
    as_json: AsJson = False,
) -> None:
    """Open a session with an agent."""
    draft = SessionDraft(agent=agent, title=title, atlases=atlas or [])
    show_one(run(lambda plane: plane.sessions.create(draft)), as_json)


@app.command("list")
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


@app.command("show")
def show(session_id: UUID, as_json: AsJson = False) -> None:
    show_one(run(lambda plane: plane.sessions.get(session_id)), as_json)


@app.command("rename")
def rename(session_id: UUID, title: str, as_json: AsJson = False) -> None:
    show_one(run(lambda plane: plane.sessions.update(session_id, SessionChange(title=title))), as_json)


@app.command("send")
def send(
    session_id: UUID,
    text: str,
    idempotency_key: Annotated[str | None, typer.Option()] = None,
    as_json: AsJson = False,
) -> None:
    """Add a message; a job will read it."""
    delivery = run(lambda plane: plane.sessions.send(session_id, text, idempotency_key=idempotency_key))
    show_one(delivery, as_json)


@app.command("messages")
def messages(session_id: UUID, limit: Limit = 200, as_json: AsJson = False) -> None:
    """What was said, in order."""
    found = run(lambda plane: collect(plane.sessions.messages(session_id, limit)))
    show_many(found, ["seq", "role", "text", "created_at"], as_json)


@app.command("memory")
def memory(
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


@app.command("permissions")
def permissions(session_id: UUID, as_json: AsJson = False) -> None:
    """What is allowed in a session now, and which gate, capability or policy did it."""
    show_permissions(run(lambda plane: plane.sessions.permissions(session_id)), as_json)


@app.command("pause")
def pause(
    session_id: UUID, reason: Annotated[str | None, typer.Option()] = None, as_json: AsJson = False
) -> None:
    """Hold a session: its jobs wait until it is resumed. Those that run stop at their next boundary."""
    show_session_receipt(run(lambda plane: plane.sessions.pause(session_id, reason)), as_json)


@app.command("resume")
def resume(
    session_id: UUID, note: Annotated[str | None, typer.Option()] = None, as_json: AsJson = False
) -> None:
    """Let a held session go on."""
    show_session_receipt(run(lambda plane: plane.sessions.resume(session_id, note)), as_json)


@app.command("terminate")
def terminate(
    session_id: UUID, reason: Annotated[str | None, typer.Option()] = None, as_json: AsJson = False
) -> None:
    """End a session for good and cancel its open jobs."""
    show_one(run(lambda plane: plane.sessions.terminate(session_id, reason)), as_json)
