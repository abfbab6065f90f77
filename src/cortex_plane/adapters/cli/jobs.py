from __future__ import annotations

import json
from typing import Annotated
from uuid import UUID

import typer

from cortex_plane.adapters.cli.output import AsJson, Limit, show_many, show_one
from cortex_plane.adapters.cli.plane import collect, run
from cortex_plane.domain.errors import InvalidInput
from cortex_plane.domain.jobs import JobDraft, JobStatus

app = typer.Typer(no_args_is_help=True, help="Jobs: the units of durable work.")

IdempotencyKey = Annotated[str | None, typer.Option(help="Repeat safely: one key has one effect.")]


@app.command()
def submit(
    agent: str,
    payload: Annotated[str, typer.Option(help="A JSON object.")] = "{}",
    session: Annotated[UUID | None, typer.Option(help="An open session; a new one if left out.")] = None,
    max_retries: Annotated[int, typer.Option(min=0, max=100)] = 3,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job to an agent."""
    try:
        given = json.loads(payload)
    except ValueError as error:
        raise InvalidInput(
            f"--payload is not valid JSON: {error}.", hint="Quote it: '{\"a\": 1}'."
        ) from error
    draft = JobDraft(agent=agent, payload=given, session_id=session, max_retries=max_retries)
    show_one(run(lambda plane: plane.jobs.submit(draft, idempotency_key=idempotency_key)), as_json)


@app.command("list")
def list_jobs(
    status: Annotated[JobStatus | None, typer.Option()] = None,
    session: Annotated[UUID | None, typer.Option()] = None,
    agent: Annotated[str | None, typer.Option(help="Id or slug.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    found = run(lambda plane: collect(plane.jobs.list(limit, status=status, session_id=session, agent=agent)))
    show_many(found, ["id", "status", "kind", "session_id", "created_at", "error_message"], as_json)


@app.command()
def show(job_id: UUID, as_json: AsJson = False) -> None:
    show_one(run(lambda plane: plane.jobs.get(job_id)), as_json)


@app.command()
def history(job_id: UUID, as_json: AsJson = False) -> None:
    """Every change of its status."""
    found = run(lambda plane: plane.jobs.history(job_id))
    show_many(found, ["created_at", "previous_status", "new_status", "metadata"], as_json)


@app.command()
def cancel(
    job_id: UUID, reason: Annotated[str | None, typer.Option()] = None, as_json: AsJson = False
) -> None:
    show_one(run(lambda plane: plane.jobs.cancel(job_id, reason)), as_json)


@app.command()
def resubmit(job_id: UUID, idempotency_key: IdempotencyKey = None, as_json: AsJson = False) -> None:
    """A failed or cancelled job once more, as a new job."""
    show_one(run(lambda plane: plane.jobs.resubmit(job_id, idempotency_key=idempotency_key)), as_json)
