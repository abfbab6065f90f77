"""Watching and steering from the command line, on a plane with a worker in a thread of its own."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import httpx
import pytest
import typer
import uvicorn
from structlog.testing import capture_logs
from typer.testing import CliRunner

from cortex_plane import Client
from cortex_plane.approvals.model.approvals import ApprovalDecision, Channel, Choice
from cortex_plane.approvals.verbs import approvals, decisions, settlements
from cortex_plane.cli import agents, jobs
from cortex_plane.cli.watch import watch
from cortex_plane.db.database import Database
from cortex_plane.http.app import framed
from cortex_plane.http.metrics import Metrics
from cortex_plane.jobs.model.effects import Answer, Verdict
from cortex_plane.jobs.model.jobs import Cancellation, JobStatus
from cortex_plane.jobs.verbs import steering
from cortex_plane.main.api_process import create_app
from cortex_plane.sessions.verbs.events import EventFeed
from tests.cli.test_cli import Shell
from tests.conftest import Urls
from tests.fixtures.coded import make_coded
from tests.fixtures.listeners import listen
from tests.fixtures.people import World, apply_policies
from tests.fixtures.servers import VAULT
from tests.fixtures.stages import PATIENT, staging
from tests.fixtures.workers import call, job_of, make_agent, submit, turn, until, working

T = TypeVar("T")


@dataclass
class Live:
    """A plane that serves and works while the test types."""

    loop: asyncio.AbstractEventLoop
    world: World
    shell: Shell
    entered: asyncio.Event
    opened: asyncio.Event

    def begin(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        """Let something happen over there; call what is returned to wait for it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        return lambda: future.result(30)

    def submit(self, *script: dict[str, Any], app: str = "staging") -> UUID:
        async def made() -> UUID:
            return await submit(self.world, await make_agent(self.world, script, app=app))

        return self.begin(made())()

    def asked(self, *script: dict[str, Any]) -> UUID:
        """A job that waits for an answer."""
        id = self.submit(*script)
        self.begin(until(self.world, id, JobStatus.PAUSED))()
        return id


PAYING = (turn(call("fetch", page=1), text="I look first."), turn(call("pay", amount=7), text="I pay."))


@asynccontextmanager
async def _serving(db: Database) -> AsyncIterator[str]:
    metrics = Metrics()
    app = framed(create_app(db, metrics, EventFeed(db, poll_seconds=0.05)))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    with listen() as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await task
    metrics.close()


@pytest.fixture
def live(urls: Urls, tmp_path: Path) -> Iterator[Live]:
    ready: list[Live] = []
    is_ready, leave = threading.Event(), threading.Event()

    async def main() -> None:
        entered, opened = asyncio.Event(), asyncio.Event()
        app = staging()

        @app.tool(on_uncertain="ask_human")
        async def linger() -> str:
            """Takes its time."""
            entered.set()
            await opened.wait()
            return "done [bold]now[/bold] \x1b[31m\u202e"

        db = await Database.open(urls.app, max_size=10, vault=VAULT)
        world = await World.create(db, "acme")
        async with _serving(db) as url, working(db, app, settings=PATIENT):
            names = ("CORTEX_", "DATABASE_")
            environment = {k: v for k, v in os.environ.items() if not k.startswith(names)}
            environment |= {"CORTEX_URL": url, "CORTEX_KEY": world.admin.secret, "COLUMNS": "200"}
            ready.append(Live(asyncio.get_running_loop(), world, Shell(tmp_path, environment), entered, opened))
            is_ready.set()
            await asyncio.to_thread(leave.wait)
            opened.set()
        await db.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    with capture_logs():  # they would stand between what the commands print
        thread.start()
        try:
            assert is_ready.wait(30)
            yield ready[0]
        finally:
            leave.set()
            thread.join()


async def _seen(out: io.StringIO, text: str) -> None:
    async with asyncio.timeout(20):
        while True:
            if text in out.getvalue():
                return
            await asyncio.sleep(0.01)


def test_watching_shows_each_step_the_question_and_the_end(live: Live) -> None:
    id = live.asked(*PAYING)
    out = io.StringIO()

    async def answer() -> None:
        await _seen(out, "cortex job settle")
        (question,) = await steering.list_questions(live.world.db, live.world.admin.actor, id)
        happened = Answer(verdict=Verdict.HAPPENED, result="paid after all")
        await settlements.settle(live.world.db, live.world.admin.actor, id, question.call_id, happened)

    answered = live.begin(answer())
    live.shell.run("job", "watch", str(id), "--interval", "0.02", out=out)
    answered()
    lines = out.getvalue().splitlines()
    call_id = live.begin(_pay_call(live.world, id))()
    for verdict in ("happened", "did_not_happen", "fail"):
        assert f"  cortex job settle {id} {call_id} {verdict}" in lines
    told = "\n".join(lines)
    for part in (
        "   0  I look first.", '   0  fetch {"page":1}  completed', "   1  I pay.",
        '   1  pay {"amount":7}  uncertain  `pay` raised RuntimeError: connection reset while paying 7',
        "PAUSED  held by uncertain_effect", "so the plane cannot tell whether it happened",
        '   1  pay {"amount":7}  completed  paid after all  (settled by Ada)', "   2  done",
    ):  # fmt: skip
        assert part in told, part
    assert lines[-1].startswith("COMPLETED  ")
    assert len(lines) == len(set(lines)), "everything is told once"


async def _pay_call(world: World, id: UUID) -> UUID:
    steps = await steering.list_steps(world.db, world.admin.actor, id, 0, 1)
    return steps[0].calls[0].id


def test_the_commands_that_a_question_names_answer_it(live: Live) -> None:
    id = live.asked(*PAYING)
    shell = live.shell
    asked = shell.run("job", "questions", str(id)).stdout
    assert "connection reset while paying 7" in asked
    commands = [shlex.split(line)[1:] for line in asked.splitlines() if line.startswith("  cortex ")]
    assert [words[-1] for words in commands] == ["happened", "did_not_happen", "fail"]
    assert "still_held" in shell.run("job", "resume", str(id), expect=4).stderr
    shell.run(*commands[0], "--result", "{no json", expect=2)
    shell.run(*commands[0][:-1], "perhaps", expect=2)
    given_up = shell.run(*commands[2], "--note", "nobody knows").stdout
    assert f"job {id} is FAILED" in given_up
    assert "uncertain: nothing" in given_up
    assert "call_settled" in shell.run(*commands[0], expect=4).stderr
    ended = shell.run("job", "watch", str(id), expect=1).stdout.splitlines()[-1]
    assert ended.startswith("FAILED  ")
    assert "nobody knows" in ended
    assert shell.run("job", "questions", str(id)).stdout == "nothing yet\n"


def test_a_receipt_says_what_is_pending_and_what_is_uncertain(live: Live) -> None:
    id = live.submit(turn(call("linger")))
    live.begin(live.entered.wait())()
    shell = live.shell
    receipt = shell.one("job", "pause", str(id))
    assert (receipt["changed"], receipt["pending"]) == (True, True)
    (under_way,) = receipt["uncertain"] if isinstance(receipt["uncertain"], list) else []
    assert shell.run("job", "pause", str(id)).stdout.splitlines() == [
        f"job {id} is RUNNING; nothing changed",
        "  pending_pause: running to its next boundary",
        "  held by operator",
        "  agent: ACTIVE",
        f"  holds by {datetime.fromisoformat(str(receipt['hold_by'])):%Y-%m-%d %H:%M:%S} at the latest",
        "  settled: nothing",
        f"  uncertain: 1 call ({under_way}): under way",
    ]
    session = str(live.begin(job_of(live.world, id))().session_id)
    paused = shell.run("session", "pause", session).stdout
    assert "pending: some of its jobs run to their next boundary" in paused
    live.loop.call_soon_threadsafe(live.opened.set)
    live.begin(until(live.world, id, JobStatus.PAUSED))()
    shell.run("session", "resume", session)
    resumed = shell.run("job", "resume", str(id)).stdout.splitlines()
    assert resumed[0] == f"job {id} is RUNNING"
    assert resumed[1:] == [
        "  agent: ACTIVE", "  goes on with step 1", f"  settled: 1 call ({under_way})", "  uncertain: nothing",
    ]  # fmt: skip
    shell.run("job", "watch", str(id))


def test_what_an_agent_or_a_tool_says_is_shown_as_plain_text(live: Live) -> None:
    live.loop.call_soon_threadsafe(live.opened.set)
    id = live.submit(turn(call("linger"), text="red \x1b[31mtext\n[bold]x[/bold] \u009b31m"))
    for words in (("watch",), ("steps",)):
        shown = live.shell.run("job", *words, str(id)).stdout
        assert "red \\x1b[31mtext [bold]x[/bold] \\x9b31m" in shown
        assert "done [bold]now[/bold] \\x1b[31m\\x202e" in shown
        assert not {"\x1b", "\x9b", "\u202e"} & set(shown)
    kept = live.shell.run("job", "checkpoint", str(id)).stdout
    assert json.loads(kept)["status"] == "completed"
    assert kept.isascii()


def test_a_program_watches_in_json_lines(live: Live) -> None:
    id = live.asked(*PAYING)
    out = io.StringIO()
    cancelled = live.begin(_cancel_when_asked(live.world, id, out))
    live.shell.run("job", "watch", str(id), "--json", out=out, expect=1)
    cancelled()
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [event["seq"] for event in told] == sorted({event["seq"] for event in told})
    assert {event["job_id"] for event in told} == {str(id)}
    kinds = [event["type"] for event in told]
    for kind in ("status", "message", "tool_call", "tool_result", "session_paused"):
        assert kind in kinds
    assert told[-1]["data"]["status"] == "CANCELLED"
    assert [step["step_index"] for step in live.shell.many("job", "steps", str(id))] == [0, 1]
    assert live.shell.many("job", "journal", str(id)) == []


async def _cancel_when_asked(world: World, id: UUID, out: io.StringIO) -> None:
    await _seen(out, '"session_paused"')
    await steering.cancel(world.db, world.admin.actor, id, Cancellation())


def test_ctrl_c_stops_watching_only(live: Live) -> None:
    id = live.submit(turn(call("nothing")), app="nobody-has-it")
    watching = subprocess.Popen(
        [sys.executable, "-m", "cortex_plane", "job", "watch", str(id)],
        cwd=live.shell.folder, env=live.shell.environment | {"PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert watching.stdout is not None
    with watching.stdout as said:
        assert said.readline() == "PENDING  waits for a worker that has loaded the app nobody-has-it\n"
        watching.send_signal(signal.SIGINT)
        assert said.read() == "stopped watching; the job goes on\n"
    assert watching.wait(30) == 130
    assert live.begin(job_of(live.world, id))().status is JobStatus.PENDING


def test_a_plane_that_is_away_for_a_while_is_waited_for(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    id = live.submit(turn(call("nothing")), app="nobody-has-it")
    job = live.shell.one("job", "show", str(id))
    pending = {"seq": 1, "type": "status", "job_id": str(id), "data": {"status": "PENDING"}}
    pending |= {"created_at": job["created_at"]}
    completed = pending | {"seq": 2, "data": {"status": "COMPLETED"}}
    ended = job | {"status": "COMPLETED", "result": {"text": "done"}}
    # The first stream breaks off; then nobody answers twice; then it goes on where it was.
    streams = iter([[pending], None, None, [completed]])
    asked: list[str] = []
    current = [job]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/steps"):
            return httpx.Response(200, json={"items": [], "next_cursor": None})
        if not request.url.path.endswith("/events"):
            return httpx.Response(200, json=current[0])
        asked.append(request.headers["Last-Event-ID"])
        told = next(streams)
        if told is None:
            raise httpx.ConnectError("refused")
        body = "".join(f"id: {e['seq']}\nevent: status\ndata: {json.dumps(e)}\n\n" for e in told)
        if told == [completed]:
            current[0] = ended
            body += 'event: end\ndata: {"reason": "job_ended"}\n\n'
        return httpx.Response(200, text=body, headers={"Content-Type": "text/event-stream"})

    async def watching() -> None:
        async with Client("http://plane", "cortex_key_x", transport=httpx.MockTransport(answer)) as plane:
            assert (await watch(plane, id, 0.01, False)).status is JobStatus.COMPLETED

    asyncio.run(watching())
    said = capsys.readouterr()
    assert asked == ["0", "1", "1", "1"], "each time from where it was"
    assert said.err.count("Waiting for it.") == 1
    assert said.out.splitlines()[0].startswith("PENDING  ")
    assert said.out.splitlines()[-1] == 'COMPLETED  {"text":"done"}'


def test_a_job_that_is_not_there_is_not_watched(live: Live) -> None:
    live.shell.run("job", "watch", "01936f3a-0000-7000-8000-000000000000", expect=3)
    live.shell.run("job", "watch", "01936f3a-0000-7000-8000-000000000000", "--interval", "0", expect=2)


def test_workers_and_tools_are_shown(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.begin(until(live.world, live.submit(), JobStatus.COMPLETED))()  # by then the worker is known
    root = typer.Typer()
    root.add_typer(jobs.workers_app, name="workers")
    root.add_typer(agents.tool_app, name="tool")
    for name in ("CORTEX_URL", "CORTEX_KEY"):
        monkeypatch.setenv(name, live.shell.environment[name])
    shown = CliRunner().invoke(root, ["tool", "list"])
    assert (shown.exit_code, "linger" in shown.stdout, "ask_human" in shown.stdout) == (0, True, True)
    (worker,) = json.loads(CliRunner().invoke(root, ["workers", "list", "--json"]).stdout)
    assert (worker["alive"], worker["apps"]) == (True, ["plane", "staging"])
    assert worker["id"] in CliRunner().invoke(root, ["workers", "list"]).stdout


def test_an_approval_is_shown_with_the_commands_that_decide_it(live: Live) -> None:
    """A job that waits for a person says which approval, and what to type."""
    id = live.begin(_waiting_job(live))()
    out = io.StringIO()
    decided = live.begin(_approve_when_told(live.world, id, out))
    live.shell.run("job", "watch", str(id), out=out)
    approval = decided()
    lines = out.getvalue().splitlines()
    for verb in ("show", "approve", "deny"):
        assert lines.count(f"  cortex approval {verb} {approval}") == 1
    assert any(line.startswith("WAITING_FOR_APPROVAL") for line in lines)
    assert any("approved by Ada" in line and str(approval) in line for line in lines)
    assert lines[-1].startswith("COMPLETED  ")


async def _waiting_job(live: Live) -> UUID:
    careful = 'policies: [{name: careful, target: "linger", effect: requires_approval}]'
    await apply_policies(live.world.db, live.world.admin.actor, careful)
    live.opened.set()
    id = await submit(live.world, await make_agent(live.world, [turn(call("linger"))], app="staging"))
    await until(live.world, id, JobStatus.WAITING_FOR_APPROVAL)
    return id


async def _approve_when_told(world: World, id: UUID, out: io.StringIO) -> UUID:
    await _seen(out, "cortex approval deny")
    page = await approvals.list_approvals(world.db, world.admin.actor, None, 5, job_id=id)
    (asked,) = page.items
    yes = ApprovalDecision(decision=Choice.APPROVED, version=asked.version, input_hash=asked.input_hash)
    await decisions.decide(world.db, world.admin.actor, asked.id, yes, Channel.API)
    return asked.id


@pytest.mark.proves("D.338")
def test_agent_of_the_previous_release_says_what_to_declare(live: Live, urls: Urls) -> None:
    async def from_before() -> None:
        await make_coded(live.world)
        admin = await asyncpg.connect(urls.admin)
        await admin.execute("update agent set repeats_steps = true")
        await admin.close()

    live.begin(from_before())()
    text = " ".join(live.shell.run("agent", "show", "coded").stdout.split())
    assert "warning: if a worker dies, steps of this agent's code that declare nothing run again" in text
    assert "Declare repeatable=True or on_uncertain at each step; `cortex doctor preflight --replay` lists" in text
    assert "warning" not in live.shell.run("agent", "show", live.world.agent.slug).stdout
    assert live.shell.one("agent", "show", "coded")["repeats_steps"] is True, "as JSON, and nothing else"
