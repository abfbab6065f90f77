"""`cortex job`, `signal`, `workers` and `usage`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from cortex_plane.cli.output import AsJson, Atlases, Limit, harmless, said, short, show_many, show_one, tell
from cortex_plane.cli.plane import collect, run
from cortex_plane.cli.steering import show_receipt
from cortex_plane.jobs.model.effects import Answer, Verdict
from cortex_plane.jobs.model.jobs import Job, JobStatus
from cortex_plane.jobs.model.journal import MAX_PAYLOAD_BYTES
from cortex_plane.jobs.model.usage import Grouping, UsageRow, cost_text
from cortex_plane.kernel.canonical import unique
from cortex_plane.kernel.errors import InvalidInput

if TYPE_CHECKING:
    from cortex_plane.client import Client
    from cortex_plane.jobs.model.jobs import Job, Step
    from cortex_plane.jobs.model.journal import JournalEntry
    from cortex_plane.jobs.model.usage import UsageTotals


job_app = typer.Typer(no_args_is_help=True, help="Jobs: the units of durable work.")

IdempotencyKey = Annotated[str | None, typer.Option(help="Repeat safely: one key has one effect.")]


@job_app.command("submit")
def submit_job(
    agent: str,
    payload: Annotated[str, typer.Option(help="A JSON object.")] = "{}",
    session: Annotated[UUID | None, typer.Option(help="An open session; a new one if left out.")] = None,
    max_retries: Annotated[int, typer.Option(min=0, max=100)] = 3,
    atlas: Atlases = None,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job to an agent."""
    from cortex_plane.jobs.model.job_drafts import JobDraft

    draft = JobDraft(
        agent=agent, payload=_json("--payload", payload), session_id=session, max_retries=max_retries,
        atlases=atlas or [],
    )  # fmt: skip
    show_one(run(lambda plane: plane.jobs.submit(draft, idempotency_key=idempotency_key)), as_json)


@job_app.command("list")
def list_jobs(
    status: Annotated[JobStatus | None, typer.Option()] = None,
    session: Annotated[UUID | None, typer.Option()] = None,
    agent: Annotated[str | None, typer.Option(help="Id or slug.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    found = run(lambda plane: collect(plane.jobs.list(limit, status=status, session_id=session, agent=agent)))
    show_many(found, ["id", "status", "kind", "session_id", "created_at", "error_message"], as_json)


@job_app.command("show")
def show_job(job_id: UUID, as_json: AsJson = False) -> None:
    if as_json:
        show_one(run(lambda plane: plane.jobs.get(job_id)), True)
        return
    from cortex_plane.jobs.model.usage import cost_text

    job, used = run(lambda plane: _with_usage(plane, job_id))
    show_one(job, False)
    tokens = f"{used.prompt_tokens} prompt, {used.completion_tokens} completion"
    asked = f"{used.calls} call" if used.calls == 1 else f"{used.calls} calls"
    said(f"tokens: {tokens} ({used.cache_read_tokens} from the cache) in {asked}; cost: {cost_text(used)}")


async def _with_usage(plane: Client, job_id: UUID) -> tuple[Job, UsageTotals]:
    return await plane.jobs.get(job_id), await plane.usage.of_job(job_id)


@job_app.command("history")
def list_history(job_id: UUID, as_json: AsJson = False) -> None:
    """Every change of its status."""
    found = run(lambda plane: plane.jobs.history(job_id))
    show_many(found, ["created_at", "previous_status", "new_status", "metadata"], as_json)


@job_app.command("steps")
def list_steps(job_id: UUID, limit: Limit = 200, as_json: AsJson = False) -> None:
    """What the model said and what its calls did, in order."""
    found = run(lambda plane: collect(plane.jobs.steps(job_id, limit)))
    if as_json:
        show_many(found, [], True)
    else:
        lines = [line for step in found for line in _step_rows(step)]
        show_many(lines, ["step", "tool", "arguments", "status", "result"], False)


@job_app.command("journal")
def list_journal(job_id: UUID, limit: Limit = 200, as_json: AsJson = False) -> None:
    """What the code of a job did so far: each operation, and what it came to."""
    found = run(lambda plane: collect(plane.jobs.journal(job_id, limit)))
    if as_json:
        show_many(found, [], True)
    else:
        show_many(
            [_journal_row(entry) for entry in found], ["position", "key", "kind", "status", "result"], False
        )


@job_app.command("checkpoint")
def show_checkpoint(job_id: UUID, as_json: AsJson = False) -> None:
    """The durable state that the job would be resumed from."""
    blob = run(lambda plane: plane.jobs.checkpoint(job_id))
    # ASCII, so that nothing in it can disturb a terminal.
    sys.stdout.write(json.dumps(blob, indent=None if as_json else 2) + "\n")


@job_app.command("waits")
def list_waits(job_id: UUID, as_json: AsJson = False) -> None:
    """The signals that it waits for, and what came."""
    found = run(lambda plane: plane.jobs.waits(job_id))
    show_many(found, ["entry", "name", "key", "created_at", "arrived_at", "payload"], as_json)


@job_app.command("questions")
def list_questions(job_id: UUID, as_json: AsJson = False) -> None:
    """Calls of which nobody knows whether they happened, and the commands that settle them."""
    found = run(lambda plane: plane.jobs.questions(job_id))
    if as_json or not found:
        show_many(found, [], as_json)
        return
    from cortex_plane.cli.watch import question_lines

    for question in found:
        for line in question_lines(question):
            tell(line)


@job_app.command("settle")
def settle_call(
    job_id: UUID,
    call_id: UUID,
    verdict: Verdict,
    result: Annotated[
        str | None, typer.Option(help="JSON: what the agent is told that the call returned.")
    ] = None,
    note: Annotated[str | None, typer.Option(help="For the audit trail and the agent.")] = None,
    as_json: AsJson = False,
) -> None:
    """Answer a question: it happened, it did not (and is sent again), or give the job up."""
    given = _json("--result", result) if result is not None else None
    answer = Answer(verdict=verdict, result=given, note=note)
    show_receipt(run(lambda plane: plane.jobs.settle(job_id, call_id, answer)), as_json)


@job_app.command("pause")
def pause_job(
    job_id: UUID, reason: Annotated[str | None, typer.Option()] = None, as_json: AsJson = False
) -> None:
    """Hold a job until it is resumed. One that runs stops at its next boundary."""
    show_receipt(run(lambda plane: plane.jobs.pause(job_id, reason)), as_json)


@job_app.command("resume")
def resume_job(
    job_id: UUID, note: Annotated[str | None, typer.Option()] = None, as_json: AsJson = False
) -> None:
    """Let a held job go on. A question is answered with `settle` instead."""
    show_receipt(run(lambda plane: plane.jobs.resume(job_id, note)), as_json)


@job_app.command("cancel")
def cancel_job(
    job_id: UUID, reason: Annotated[str | None, typer.Option()] = None, as_json: AsJson = False
) -> None:
    """End a job. One that runs ends at its next boundary."""
    show_receipt(run(lambda plane: plane.jobs.cancel(job_id, reason)), as_json)


@job_app.command("watch")
def watch_job(
    job_id: UUID,
    interval: Annotated[
        float, typer.Option(min=0.01, max=60, help="Seconds between two tries to reach a plane that is away.")
    ] = 0.5,
    as_json: AsJson = False,
) -> None:
    """Show each step as it happens, until the job ends. Exit code 0 if it completed; Ctrl-C stops watching only."""
    from cortex_plane.cli.watch import watch as watching

    try:
        job = run(lambda plane: watching(plane, job_id, interval, as_json))
    except KeyboardInterrupt:
        if not as_json:
            said("stopped watching; the job goes on")
        raise
    if job.status is not JobStatus.COMPLETED:
        raise typer.Exit(1)


@job_app.command("resubmit")
def resubmit_job(job_id: UUID, idempotency_key: IdempotencyKey = None, as_json: AsJson = False) -> None:
    """A failed or cancelled job once more, as a new job."""
    show_one(run(lambda plane: plane.jobs.resubmit(job_id, idempotency_key=idempotency_key)), as_json)


@dataclass(frozen=True, slots=True)
class _StepRow:
    step: int
    tool: str | None
    arguments: str | None
    status: str | None
    result: str


@dataclass(frozen=True, slots=True)
class _JournalRow:
    position: int
    key: str
    kind: str
    status: str
    result: str


def _journal_row(entry: JournalEntry) -> _JournalRow:
    from cortex_plane.cli.watch import RESULT

    outcome = entry.error["message"] if entry.error else entry.result
    return _JournalRow(entry.position, entry.key, entry.kind, entry.status, short(outcome, 2 * RESULT))


def _step_rows(step: Step) -> Iterator[_StepRow]:
    """What was said, then each call."""
    from cortex_plane.cli.watch import ARGUMENTS, RESULT, SAID, outcome

    if step.text:
        yield _StepRow(step.step_index, None, None, None, short(step.text, SAID))
    for call in step.calls:
        arguments = short(call.arguments, ARGUMENTS)
        yield _StepRow(step.step_index, call.tool_name, arguments, call.status, outcome(call)[: 2 * RESULT])


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=unique)
    except ValueError as error:
        raise InvalidInput(f"{option} is not valid JSON: {error}.", hint="Quote it: '{\"a\": 1}'.") from error


signal_app = typer.Typer(no_args_is_help=True, help="Signals: tell jobs that wait what happened.")


@signal_app.command("send")
def send_signal(
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


@signal_app.command("list")
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


workers_app = typer.Typer(no_args_is_help=True, help="Workers: the processes that run jobs.")


@workers_app.command("list")
def list_workers(as_json: AsJson = False) -> None:
    """Who is there, newest first. Needs a platform key."""
    found = run(lambda plane: plane.workers.list())
    columns = ["id", "name", "alive", "apps", "concurrency", "started_at", "expires_at", "stopped_at"]
    show_many(found, columns, as_json)


usage_app = typer.Typer()

Day = Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])]


@usage_app.command("usage")
def list_usage(
    by: Annotated[Grouping, typer.Option(help="What to sum by.")] = Grouping.DAY,
    since: Day = None,
    until: Day = None,
    agent: Annotated[str | None, typer.Option(help="Id or slug.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """What models were asked, what it took and what it cost. Times are UTC; `--until` itself is left out."""
    found = run(
        lambda plane: collect(plane.usage.list(by, limit, since=_utc(since), until=_utc(until), agent=agent))
    )
    if as_json:
        show_many(found, [], True)
    else:
        columns = ["calls", "prompt", "cache_read", "cache_write", "completion", "cost"]
        show_many([_usage_row(row) for row in found], [by.value, *columns], False)


def _utc(given: datetime | None) -> datetime | None:
    return None if given is None else given.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _UsageRow:
    day: str
    agent: str
    job: str
    model: str
    calls: int
    prompt: int
    cache_read: int
    cache_write: int
    completion: int
    cost: str


def _usage_row(row: UsageRow) -> _UsageRow:
    return _UsageRow(
        day=row.key,
        agent=row.agent or row.key,
        job=row.key,
        model=row.key,
        calls=row.calls,
        prompt=row.prompt_tokens,
        cache_read=row.cache_read_tokens,
        cache_write=row.cache_write_tokens,
        completion=row.completion_tokens,
        cost=cost_text(row),
    )
