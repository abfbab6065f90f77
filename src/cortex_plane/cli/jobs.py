"""`cortex job`, `signal`, `workers` and `usage`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer
from typer import Argument, Option

from cortex_plane.cli import terminal
from cortex_plane.cli.plane import harmless, run
from cortex_plane.cli.terminal import AsJson, Atlases, Limit, add_command, say, show_record, show_table
from cortex_plane.jobs import routes
from cortex_plane.jobs.model.effects import Answer, Verdict
from cortex_plane.jobs.model.jobs import Job, JobDraft, JobStatus, Step
from cortex_plane.jobs.model.journal import MAX_PAYLOAD_BYTES, JournalEntry, SignalReceipt
from cortex_plane.jobs.model.usage import Grouping, UsageRow, UsageTotals, cost_text
from cortex_plane.kernel.canonical import unique
from cortex_plane.kernel.errors import InvalidInput

if TYPE_CHECKING:
    from cortex_plane.client import Client

job_app = typer.Typer(no_args_is_help=True, help="Jobs: the units of durable work.")

IdempotencyKey = Annotated[str | None, Option(help="Repeat safely: one key has one effect.")]


@job_app.command("submit")
def submit_job(
    agent: str,
    payload: Annotated[str, Option(help="A JSON object.")] = "{}",
    session: Annotated[UUID | None, Option(help="An open session; a new one if left out.")] = None,
    max_retries: Annotated[int, Option(min=0, max=100)] = 3,
    atlas: Atlases = None,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job to an agent."""
    value = terminal.parse_json(payload, "--payload is not valid JSON")
    draft = JobDraft(agent=agent, payload=value, session_id=session, max_retries=max_retries, atlases=atlas or [])
    show_record(lambda plane: plane.jobs.submit(draft, idempotency_key=idempotency_key), as_json)


add_command(job_app, "list", routes.LIST_JOBS, status="", session="", agent="Id or slug.")


@job_app.command("show")
def show_job(job_id: UUID, as_json: AsJson = False) -> None:
    async def get_with_usage(plane: Client) -> tuple[Job, UsageTotals]:
        return await plane.jobs.get(job_id), await plane.usage.of_job(job_id)

    if as_json:
        show_record(lambda plane: plane.jobs.get(job_id), as_json)
        return
    job, usage = run(get_with_usage)
    terminal.print_record(job)
    tokens = f"{usage.prompt_tokens} prompt, {usage.completion_tokens} completion"
    calls = terminal.count_text(usage.calls, "call")
    say(f"tokens: {tokens} ({usage.cache_read_tokens} from the cache) in {calls}; cost: {cost_text(usage)}")


add_command(job_app, "history", routes.GET_JOB_HISTORY, "Every change of its status.")


@job_app.command("steps")
def list_steps(job_id: UUID, limit: Limit = 200, as_json: AsJson = False) -> None:
    """What the model said and what its calls did, in order."""
    steps = terminal.fetch_list(lambda plane: plane.jobs.steps(job_id, limit))
    rows = steps if as_json else [row for step in steps for row in _step_rows(step)]
    terminal.print_table(rows, "step tool arguments status result", as_json)


def _step_rows(step: Step) -> Iterator[dict[str, Any]]:
    """The text of the model, then each call."""
    from cortex_plane.cli.watch import ARGUMENTS, RESULT, TEXT, outcome

    row = dict.fromkeys(("tool", "arguments", "status")) | {"step": step.step_index}
    if step.text:
        yield row | {"result": terminal.short(step.text, TEXT)}
    for call in step.calls:
        yield row | {
            "tool": call.tool_name, "arguments": terminal.short(call.arguments, ARGUMENTS), "status": call.status,
            "result": outcome(call)[: 2 * RESULT],
        }  # fmt: skip


@job_app.command("journal")
def list_journal(job_id: UUID, limit: Limit = 200, as_json: AsJson = False) -> None:
    """What the code of a job did so far: each operation, and what it came to."""
    show_table(routes.LIST_JOURNAL, lambda plane: plane.jobs.journal(job_id, limit), as_json, _journal_row)


def _journal_row(entry: JournalEntry) -> dict[str, Any]:
    from cortex_plane.cli.watch import RESULT

    result = terminal.short(entry.error["message"] if entry.error else entry.result, 2 * RESULT)
    return {name: getattr(entry, name) for name in ("position", "key", "kind", "status")} | {"result": result}


@job_app.command("checkpoint")
def show_checkpoint(job_id: UUID, as_json: AsJson = False) -> None:
    """The durable state that the job would be resumed from."""
    blob = run(lambda plane: plane.jobs.checkpoint(job_id))
    # ASCII, so that nothing in it can disturb a terminal.
    sys.stdout.write(json.dumps(blob, indent=None if as_json else 2) + "\n")


add_command(job_app, "waits", routes.LIST_WAITS, "The signals that it waits for, and what came.")


@job_app.command("questions")
def list_questions(job_id: UUID, as_json: AsJson = False) -> None:
    """Calls of which nobody knows whether they happened, and the commands that settle them."""
    questions = run(lambda plane: plane.jobs.questions(job_id))
    if as_json or not questions:
        terminal.print_table(questions, "", as_json)
        return
    from cortex_plane.cli.watch import question_lines

    for question in questions:
        for line in question_lines(question):
            terminal.print_line(line)


@job_app.command("settle")
def settle_call(
    job_id: UUID,
    call_id: UUID,
    verdict: Verdict,
    result: Annotated[str | None, Option(help="JSON: what the agent is told that the call returned.")] = None,
    note: Annotated[str | None, Option(help="For the audit trail and the agent.")] = None,
    as_json: AsJson = False,
) -> None:
    """Answer a question: it happened, it did not (and is sent again), or give the job up."""
    value = None if result is None else terminal.parse_json(result, "--result is not valid JSON")
    answer = Answer(verdict=verdict, result=value, note=note)
    show_record(lambda plane: plane.jobs.settle(job_id, call_id, answer), as_json, terminal.show_receipt)


add_command(
    job_app, "pause", routes.PAUSE_JOB, "Hold a job until it is resumed. One that runs stops at its next boundary.",
    terminal.show_receipt, body=terminal.PAUSE,
)  # fmt: skip
add_command(
    job_app, "resume", routes.RESUME_JOB, "Let a held job go on. A question is answered with `settle` instead.",
    terminal.show_receipt, body=terminal.RESUMPTION,
)  # fmt: skip
add_command(
    job_app, "cancel", routes.CANCEL_JOB, "End a job. One that runs ends at its next boundary.", terminal.show_receipt, body=terminal.REASON
)  # fmt: skip


@job_app.command("watch")
def watch_job(
    job_id: UUID,
    interval: Annotated[
        float, Option(min=0.01, max=60, help="Seconds between two tries to reach a plane that is away.")
    ] = 0.5,
    as_json: AsJson = False,
) -> None:
    """Show each step as it happens, until the job ends. Exit code 0 if it completed; Ctrl-C stops watching only."""
    from cortex_plane.cli.watch import watch

    try:
        job = run(lambda plane: watch(plane, job_id, interval, as_json))
    except KeyboardInterrupt:
        if not as_json:
            say("stopped watching; the job goes on")
        raise
    if job.status is not JobStatus.COMPLETED:
        raise typer.Exit(1)


@job_app.command("resubmit")
def resubmit_job(job_id: UUID, idempotency_key: IdempotencyKey = None, as_json: AsJson = False) -> None:
    """A failed or cancelled job once more, as a new job."""
    show_record(lambda plane: plane.jobs.resubmit(job_id, idempotency_key=idempotency_key), as_json)


signal_app = typer.Typer(no_args_is_help=True, help="Signals: tell jobs that wait what happened.")


@signal_app.command("send")
def send_signal(
    name: Annotated[str, Argument(help="What happened: payment.received")],
    key: Annotated[str, Argument(help="To which one: order-4711")],
    payload: Annotated[str, Option(help="JSON that the jobs are given; - reads it from stdin.")] = "null",
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Wake every job that waits for this name and key, now or later. The first payload stays."""
    value = _read_payload(payload)

    def show(receipt: SignalReceipt) -> None:
        signal = f"{harmless(name)} {harmless(key)}"
        woken = f"sent {signal}: {terminal.count_text(receipt.woken, 'job')} waited for it"
        say(woken if receipt.changed else f"{signal} was sent before; nothing changed")

    show_record(lambda plane: plane.signals.send(name, key, value, idempotency_key=idempotency_key), as_json, show)


add_command(
    signal_app,
    "list",
    routes.LIST_SIGNALS,
    "What was sent, newest first.",
    name="Only those with this name.",
    key="Only those with this key.",
)


def _read_payload(text: str) -> Any:
    # Bounded: one character more than the limit shows that a payload is too large.
    payload = sys.stdin.read(MAX_PAYLOAD_BYTES * 2 + 1) if text == "-" else text
    try:
        return json.loads(payload, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise InvalidInput(
            "--payload is not JSON.",
            hint="""Quote it for the shell: --payload '{"paid": true}'; or pipe it: --payload -""",
        ) from None


workers_app = typer.Typer(no_args_is_help=True, help="Workers: the processes that run jobs.")

add_command(workers_app, "list", routes.LIST_WORKERS, "Who is there, newest first. Needs a platform key.")


usage_app = typer.Typer()

Day = Annotated[datetime | None, Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])]


@usage_app.command("usage")
def list_usage(
    by: Annotated[Grouping, Option(help="What to sum by.")] = Grouping.DAY,
    since: Day = None,
    until: Day = None,
    agent: Annotated[str | None, Option(help="Id or slug.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """What models were asked, what it took and what it cost. Times are UTC; `--until` itself is left out."""
    show_table(
        routes.LIST_USAGE,
        lambda plane: plane.usage.list(by, limit, since=_utc(since), until=_utc(until), agent=agent),
        as_json,
        lambda usage: {by.value: usage.agent or usage.key, **_usage_row(usage)},
    )


def _utc(at: datetime | None) -> datetime | None:
    return None if at is None else at.replace(tzinfo=UTC)


def _usage_row(usage: UsageRow) -> dict[str, Any]:
    return {
        "calls": usage.calls,
        "prompt": usage.prompt_tokens,
        "cache_read": usage.cache_read_tokens,
        "cache_write": usage.cache_write_tokens,
        "completion": usage.completion_tokens,
        "cost": cost_text(usage),
    }
