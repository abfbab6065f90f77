"""`cortex resume`: agents elsewhere are resumed by a command of this machine after people decided, whoever is killed meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cortex_plane.approvals.model.approvals import Choice
from cortex_plane.calls.model import CallDecision
from cortex_plane.cli.resumer import ResumeConfig, read_resume_file
from cortex_plane.client import Client
from cortex_plane.client.authorization import Advice, PlaneCalls
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.tenancy.model.access import Grantable
from cortex_plane.tenancy.model.orgs import Role
from tests.client.test_authorization import server
from tests.client.test_guard import decide_soon, ledger
from tests.fixtures.apart import Apart
from tests.fixtures.people import World, apply_policies
from tests.frameworks.test_examples import RUNS, access_of
from tests.frameworks.test_examples import run as run_example

__all__ = ["server"]

ROOT = Path(__file__).parents[2]
NOTES = """
import os, pathlib, sys
with pathlib.Path("runs.txt").open("a") as runs:
    runs.write(sys.argv[1] + " " + os.environ["CORTEX_RESUME_DECISION"] + "\\n")
fails = pathlib.Path("fails")
if fails.exists():
    fails.unlink()
    sys.exit(3)
"""


def write_config(folder: Path, code: str, *words: str, **more: Any) -> Path:
    command = [sys.executable, "-c", code, *words]
    settings = {"command": command, "every": 0.05} | more
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    file = folder / "cortex-resume.toml"
    file.write_text("\n".join(lines))
    return file


@asynccontextmanager
async def resuming(folder: Path, access: dict[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """`cortex resume` in a process of its own; stopped at the end, if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cortex_plane", "resume", cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder), **access},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        output, _ = await asyncio.wait_for(process.communicate(), 30)
    # 255: killed, and asyncio was not the one that saw its end.
    assert process.returncode in (0, -signal.SIGKILL, 255), output.decode()


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


async def until(file: Path, lines: int) -> list[str]:
    async with asyncio.timeout(60):
        while len(lines_of(file)) < lines:  # noqa: ASYNC110 -- another process writes it
            await asyncio.sleep(0.02)
    return lines_of(file)


def done(folder: Path) -> int:
    state = folder / "cortex-resume.state.json"
    return len(json.loads(state.read_text())["done"]) if state.exists() else -1


async def until_done(folder: Path, decisions: int) -> None:
    async with asyncio.timeout(60):
        while done(folder) < decisions:  # noqa: ASYNC110 -- another process writes it
            await asyncio.sleep(0.02)


async def ask(plane: Client, thread: str, n: int = 1, **more: Any) -> None:
    answer = await PlaneCalls(plane, agent="deployer", session=thread, **more).authorize("pay", {"n": n}, f"id-{n}")
    assert answer.next is Advice.WAIT, answer


@pytest.mark.proves("D.1025")
async def test_an_agent_that_waits_is_resumed_in_a_new_process_after_the_approval(
    server: Apart, strict: World, tmp_path: Path
) -> None:
    access = await access_of(server, strict)
    code = RUNS.format(framework="pydantic_ai", kind="guarded")
    status, output = await run_example(tmp_path, access, code)
    assert (status, "/approvals/" in output) == (0, True), output
    write_config(tmp_path, code + "\nopen('ended.txt', 'a').write('1\\n')\n", "{outside_id}", every=1.0)
    async with resuming(tmp_path, access) as process:
        await until_done(tmp_path, 0)
        await decide_soon(strict)
        # Killed between the decision and the start: the next one begins where nothing was done.
        process.kill()
    async with resuming(tmp_path, access):
        await until(tmp_path / "ended.txt", 1)
    assert (tmp_path / "bank.txt").read_text() == "500 for A-1\n"
    assert [call.status for call in await ledger(strict)] == ["completed"]


@pytest.mark.proves("D.1025")
async def test_each_decision_is_followed_by_a_run_that_ended_well_and_no_other(
    server: Apart, strict: World, tmp_path: Path
) -> None:
    access = {"CORTEX_URL": server.url, "CORTEX_KEY": strict.service.secret}
    write_config(tmp_path, NOTES, "{outside_id}", parallel=2)
    (tmp_path / "fails").touch()
    async with Client(server.url, strict.service.secret) as plane:
        await ask(plane, "thread a")
        await decide_soon(strict)
        async with resuming(tmp_path, access):
            assert await until(tmp_path / "runs.txt", 2) == ["thread a approved"] * 2, "the first run failed"
            await ask(plane, "--thread b")
            await decide_soon(strict, Choice.DENIED)
            await ask(plane, "thread c")
            await decide_soon(strict, Choice.DENIED)
            assert (await until(tmp_path / "runs.txt", 3))[2:] == ["thread c denied"], "an id is no option"
            await until_done(tmp_path, 2)
        # Nothing is done again by the next process, and what it has not done it does.
        await ask(plane, "thread d")
        await decide_soon(strict)
        async with resuming(tmp_path, access):
            assert (await until(tmp_path / "runs.txt", 4))[3:] == ["thread d approved"]
        decided = [call async for call in plane.calls.list_decided()]
        assert [call.outside_id for call in decided] == ["thread a", "--thread b", "thread c", "thread d"]
        later = [
            call.outside_id async for call in plane.calls.list_decided(since=decided[2].decided_at, agent="deployer")
        ]
        assert later == ["thread c", "thread d"]
    async with Client(server.url, (await strict.service_with(*strict.service.actor.roles)).secret) as other:
        assert [call async for call in other.calls.list_decided()] == []


@pytest.mark.proves("D.1025")
async def test_a_command_is_stopped_with_its_resumer_and_done_again(
    server: Apart, strict: World, tmp_path: Path
) -> None:
    access = {"CORTEX_URL": server.url, "CORTEX_KEY": strict.service.secret}
    hangs = "import os, time; open('pids.txt', 'a').write(f'{os.getpid()}\\n'); time.sleep(60)"
    write_config(tmp_path, hangs)
    async with Client(server.url, strict.service.secret) as plane:
        await ask(plane, "thread a")
    await decide_soon(strict)
    async with resuming(tmp_path, access):
        (pid,) = await until(tmp_path / "pids.txt", 1)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    async with resuming(tmp_path, access):
        await until(tmp_path / "pids.txt", 2)


ADMINS_DECIDE = 'policies: [{name: ask, target: "*", effect: requires_approval, approvers: {roles: [admin]}}]'
WHOM = """
import os, pathlib
with pathlib.Path("runs.txt").open("a") as runs:
    runs.write(os.environ["CORTEX_RESUME_SESSION_ID"] + " " + os.environ["CORTEX_RESUME_ON_BEHALF_OF"] + "\\n")
"""


@pytest.mark.proves("D.1106")
async def test_each_person_under_one_outside_id_has_a_run_of_their_own(
    server: Apart, strict: World, tmp_path: Path
) -> None:
    service = await strict.service_with(Role.MEMBER, permissions=[Grantable.SESSION_ON_BEHALF])
    people = [str((await strict.person(Role.MEMBER)).member_id) for _ in range(2)]
    await apply_policies(strict.db, strict.admin.actor, ADMINS_DECIDE)
    async with Client(server.url, service.secret) as plane:
        for person in (*people, None):
            await ask(plane, "thread a", on_behalf_of=person)
            await decide_soon(strict)
        write_config(tmp_path, WHOM)
        async with resuming(tmp_path, {"CORTEX_URL": server.url, "CORTEX_KEY": service.secret}):
            await until_done(tmp_path, 3)
        decided = [call async for call in plane.calls.list_decided()]
    assert [call.on_behalf_of and str(call.on_behalf_of) for call in decided] == [*people, None]
    runs = sorted(f"{call.session_id} {call.on_behalf_of or ''}" for call in decided)
    assert sorted(lines_of(tmp_path / "runs.txt")) == runs


@pytest.mark.proves("D.1026")
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 1: `command`"), ("command = []", "line 1: `command`"), ('command = "agent.py"', "line 1: `command`"),
        ('command = ["run"]\nshell = true', "line 2: `shell`"), ('command = ["{agent}"]', "line 1: `command`"),
        ('command = ["run"]\nparallel = 0', "line 2: `parallel`"), ("command = [", "not TOML"),
    ],
)  # fmt: skip
def test_a_file_with_a_fault_names_its_line(text: str, fault: str, tmp_path: Path) -> None:
    file = tmp_path / "cortex-resume.toml"
    file.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        read_resume_file(file)
    assert fault in refused.value.message
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_resume_file(tmp_path / "none.toml")


@pytest.mark.proves("D.1026")
def test_ids_of_others_stay_one_word_and_no_option(tmp_path: Path) -> None:
    config = ResumeConfig(
        command=("agent", "--thread={outside_id}", "{call_id}"), folder=tmp_path, state=tmp_path / "state"
    )
    call = CallDecision.__new__(CallDecision)
    values = {"outside_id": "-rf {call_id}; $(rm)", "session_id": 1, "id": 2, "agent": "support"}
    for name, value in values.items():
        object.__setattr__(call, name, value)
    assert config.command_for(call) == ["agent", "--thread=-rf {call_id}; $(rm)", "2"]
    bare = ResumeConfig(command=("agent", "{outside_id}"), folder=tmp_path, state=tmp_path / "state")
    with pytest.raises(InvalidInput, match="option"):
        bare.command_for(call)
