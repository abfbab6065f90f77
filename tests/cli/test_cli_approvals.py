"""Approvals from the command line, on a plane with a worker in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.tenancy.model.orgs import Role
from tests.cli.test_cli import Shell
from tests.cli.test_cli_jobs import Live, _serving
from tests.conftest import Urls
from tests.fixtures.approvals import Shipping, pending, pending_soon, ship, shown
from tests.fixtures.credentials import token_for
from tests.fixtures.hostile import HOSTILE, INVISIBLE
from tests.fixtures.people import World, apply_policies
from tests.fixtures.servers import VAULT
from tests.fixtures.stages import PATIENT
from tests.fixtures.workers import call, ended, make_agent, submit, turn, working

NOBODY = "01936f3a-0000-7000-8000-000000000000"
PAY_IS_ALLOWED = "policies: [{name: pay-is-fine, target: pay, effect: allow}]"


@pytest.fixture
def shipping() -> Shipping:
    made = Shipping()

    @made.app.tool(timeout=5, on_uncertain="ask_human")
    async def pay(amount: int) -> str:
        """Pays."""
        raise RuntimeError(f"{HOSTILE} while paying {amount}")

    return made


@pytest.fixture
def live(urls: Urls, tmp_path: Path, shipping: Shipping) -> Iterator[Live]:
    ready: list[Live] = []
    is_ready, leave = threading.Event(), threading.Event()

    async def main() -> None:
        db = await Database.open(urls.app, max_size=10, vault=VAULT)
        world = await World.create(db, "strict", policies=PAY_IS_ALLOWED)
        async with _serving(db) as url, working(db, shipping.app, settings=PATIENT):
            names = ("CORTEX_", "DATABASE_")
            environment = {k: v for k, v in os.environ.items() if not k.startswith(names)}
            environment |= {"CORTEX_URL": url, "CORTEX_KEY": world.admin.secret, "COLUMNS": "200"}
            shell = Shell(tmp_path, environment)
            ready.append(Live(asyncio.get_running_loop(), world, shell, asyncio.Event(), asyncio.Event()))
            is_ready.set()
            await asyncio.to_thread(leave.wait)
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


def asked(live: Live, *calls: dict[str, Any], text: str = "I ship.", slug: str = "shipper") -> Approval:
    """A job that waits for a person, and what it waits for."""

    async def made() -> Approval:
        agent = await make_agent(live.world, [turn(*(calls or (ship(),)), text=text)], slug=slug)
        id = await submit(live.world, agent, {"text": text})
        return (await pending_soon(live.world, id))[0]

    return live.begin(made())()


def end_of(live: Live, job: UUID | None) -> JobStatus:
    assert job is not None
    return live.begin(ended(live.world, job))().status


def test_list_show_and_approve(live: Live, shipping: Shipping) -> None:
    shell = live.shell
    assert shell.run("approval", "list").stdout == "nothing yet\n"
    approval = asked(live)
    listed = shell.run("approval", "list").stdout
    assert str(approval.id) in listed
    assert "pending" in listed
    card = shell.run("approval", "show", str(approval.id)).stdout
    for part in (
        f"HIGH  ship  {approval.id}  pending  v1", '  "version": "1.0"', "Agent shipper (shipper), job",
        "was asked   I ship.", "agent says  I ship.", "default:owner", "may decide  Ada", "UTC, in ",
        ". If nobody decides by then, the call is not", "requested", "dispatched · dashboard",
    ):  # fmt: skip
        assert part in card, part
    told = shell.run("approval", "approve", str(approval.id), "--reason", "fine").stdout
    assert told == f"ship is approved; job {approval.job_id}\n"
    assert end_of(live, approval.job_id) is JobStatus.COMPLETED
    assert shipping.shipped == ["1.0 to production"]
    again = shell.run("approval", "approve", str(approval.id)).stdout
    assert again == f"ship is approved (it was before); job {approval.job_id}\n"
    conflict = shell.run("approval", "deny", str(approval.id), expect=4).stderr
    assert "approval_conflict" in conflict
    assert "It is approved already by Ada: fine." in conflict
    after = shell.run("approval", "show", str(approval.id)).stdout
    assert "outcome     approved by Ada: fine" in after
    assert shell.run("approval", "list").stdout == "nothing yet\n"
    assert str(approval.id) in shell.run("approval", "list", "--all").stdout
    assert str(approval.id) in shell.run("approval", "list", "--status", "approved").stdout
    assert str(approval.id) in shell.run("approval", "list", "--all", "--job", str(approval.job_id)).stdout
    assert shell.run("approval", "list", "--all", "--job", NOBODY).stdout == "nothing yet\n"


def test_deny_and_edit(live: Live, shipping: Shipping) -> None:
    shell = live.shell
    first = asked(live)
    assert "ship is denied" in shell.run("approval", "deny", str(first.id), "--reason", "no").stdout
    assert end_of(live, first.job_id) is JobStatus.FAILED
    second = asked(live, slug="shipper-2")
    words = ("approval", "approve", str(second.id))
    assert "edit_invalid" in shell.run(*words, "--edit", '{"version": 5}', expect=2).stderr
    assert "--edit takes a JSON object" in shell.run(*words, "--edit", "[1]", expect=2).stderr
    assert "not JSON" in shell.run(*words, "--edit", "{no", expect=2).stderr
    twice = '{"version": "2", "to": "staging", "to": "production"}'
    assert "duplicate_key" in shell.run(*words, "--edit", twice, expect=2).stderr
    assert "approval_changed" in shell.run(*words, "--version", "7", expect=4).stderr
    shell.run(*words, "--version", "x", expect=2)
    assert live.begin(shown(live.world, second.id))().status is ApprovalStatus.PENDING
    receipt = shell.one(*words, "--edit", '{"version": "2", "to": "staging"}')
    assert receipt["result"] == "OK"
    assert end_of(live, second.job_id) is JobStatus.COMPLETED
    assert shipping.shipped == ["2 to staging"]
    card = shell.run("approval", "show", str(second.id)).stdout
    assert card.index('"to": "staging"') < card.index("the agent sent") < card.index('"version": "1.0"')


def test_exit_codes_and_json(live: Live) -> None:
    shell = live.shell
    approval = asked(live)
    approver = live.begin(live.world.person(Role.APPROVER, name="Bea"))()
    stranger = live.begin(live.world.person(Role.MEMBER, name="Cy"))()
    words = ("approval", "approve", str(approval.id))
    refused = shell.run(*words, expect=5, CORTEX_KEY=approver.secret).stderr
    assert "not_an_approver" in refused
    assert "the session's owner" in refused
    seen = shell.run("approval", "show", str(approval.id), CORTEX_KEY=approver.secret).stdout
    assert "You are not one of those who may decide this." in seen
    shell.run(*words, expect=3, CORTEX_KEY=stranger.secret)
    shell.run("approval", "show", NOBODY, expect=3)
    shell.run("approval", "show", "nothing", expect=2)
    shell.run("approval", "deny", expect=2)
    shell.run("approval", "answer", str(approval.id), "happened", expect=4)
    shell.run("approval", "list", "--status", "open", expect=2)
    shell.run("approval", "list", expect=6, CORTEX_URL="http://127.0.0.1:9")
    (listed,) = shell.many("approval", "list")
    assert listed["id"] == str(approval.id)
    details = shell.one("approval", "show", str(approval.id))
    assert {"approval", "votes", "events", "similar", "now"} <= set(details)
    receipt = shell.one("approval", "deny", str(approval.id))
    assert receipt["result"] == "OK"


def test_watching_once_tells_of_what_waits_and_how_to_decide(live: Live) -> None:
    assert live.shell.run("approval", "watch", "--once").stdout == ""
    first, second = asked(live), asked(live, call("pay", amount=7), slug="payer")
    lines = live.shell.run("approval", "watch", "--once").stdout.splitlines()
    assert lines[0].startswith(f"HIGH  ship  {first.id}  pending  v1")
    assert lines[1].strip() == (
        f"cortex approval approve {first.id} --version 1   or   deny {first.id} --version 1 --reason …"
    )
    assert str(second.id) in lines[2]
    assert lines[3].strip() == f"cortex approval answer {second.id} happened|did_not_happen|fail"
    told = live.shell.run("approval", "watch", "--once", "--json").stdout.splitlines()
    assert [json.loads(line)["id"] for line in told] == [str(first.id), str(second.id)]


def test_watching_tells_of_each_once_and_ends_with_ctrl_c(live: Live) -> None:
    first = asked(live)
    watching = subprocess.Popen(
        [sys.executable, "-m", "cortex_plane", "approval", "watch", "--json"],
        cwd=live.shell.folder, env=live.shell.environment | {"PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stdout is not None
    assert json.loads(watching.stdout.readline())["id"] == str(first.id)
    second = asked(live, slug="shipper-2")
    assert json.loads(watching.stdout.readline())["id"] == str(second.id)
    watching.send_signal(signal.SIGINT)
    rest, errors = watching.communicate(timeout=30)
    assert (rest, watching.returncode) == ("", 130)
    assert "Traceback" not in errors
    assert len(live.begin(pending(live.world))()) == 2


def test_an_answer_lets_the_job_go_on(live: Live) -> None:
    card = asked(live, call("pay", amount=7), slug="payer")
    words = ("approval", "answer", str(card.id))
    live.shell.run(*words, "perhaps", expect=2)
    live.shell.run(*words, "happened", "--result", "{no", expect=2)
    assert "not_a_call" in live.shell.run("approval", "approve", str(card.id), expect=4).stderr
    told = live.shell.run(*words, "happened", "--result", '{"paid": 7}', "--note", "seen").stdout
    assert told == f"pay is approved; job {card.job_id}\n"
    assert end_of(live, card.job_id) is JobStatus.COMPLETED
    assert "approval_conflict" in live.shell.run(*words, "fail", expect=4).stderr


@pytest.mark.proves("D.744")
def test_a_question_is_answered_and_a_call_is_answered_in_its_place(live: Live, shipping: Shipping) -> None:
    form = {"type": "object", "properties": {"amount": {"type": "integer", "maximum": 50}}, "required": ["amount"]}

    async def made() -> Approval:
        ask = turn(call("plane_ask_person", question="How much?\u202e", schema=form))
        agent = await make_agent(live.world, [ask, turn(text="{result}")], slug="asks", ask_people=True)
        return (await pending_soon(live.world, await submit(live.world, agent)))[0]

    shell, question = live.shell, live.begin(made())()
    words = ("approval", "answer", str(question.id))
    assert "cortex approval answer" in shell.run("approval", "watch", "--once").stdout
    card = shell.run("approval", "show", str(question.id)).stdout
    assert "question    How much?\\x202e" in card
    assert "If nobody answers by then, the agent is told so." in card
    assert "answer_needed" in shell.run("approval", "approve", str(question.id), "--version", "1", expect=4).stderr
    shell.run(*words, expect=2)
    shell.run(*words, "--value", "{", expect=2)
    assert "`amount`" in shell.run(*words, "--value", '{"amount": 51}', expect=2).stderr
    told = shell.run(*words, "--value", '{"amount": 40}', "--note", "as agreed").stdout
    assert told == f"plane.ask_person is answered; job {question.job_id}\n"
    assert end_of(live, question.job_id) is JobStatus.COMPLETED
    assert '  "amount": 40' in shell.run("approval", "show", str(question.id)).stdout

    approval = asked(live)
    shell.run("approval", "answer", str(approval.id), "happened", expect=4)
    receipt = shell.one("approval", "answer", str(approval.id), "Ship 1.1 instead.", "--version", "1")
    assert receipt["result"] == "OK"
    assert live.begin(shown(live.world, approval.id))().answer == "Ship 1.1 instead."
    assert shell.one("approval", "answer", str(approval.id), "Ship 1.1 instead.")["result"] == "DUPLICATE"
    assert end_of(live, approval.job_id) is JobStatus.COMPLETED
    assert shipping.shipped == []


@pytest.mark.proves("D.744")
def test_a_token_answers_in_a_terminal(live: Live) -> None:
    approval = asked(live)
    token = live.begin(token_for(live.world, approval.id, live.world.admin.actor))()
    words = ("approval", "answer", "--token", token)
    live.shell.run(*words, expect=2, CORTEX_KEY="")
    told = live.shell.run(*words, "--value", '"Not today."', CORTEX_KEY="").stdout
    assert told == f"ship is answered; job {approval.job_id}\n"


def test_hostile_text_stays_text_in_a_terminal(live: Live) -> None:
    shell = live.shell
    name = "".join(c for c in HOSTILE if ord(c) > 0x1F and ord(c) != 0x7F).strip()
    person = live.begin(live.world.person(Role.ADMIN, name=name))()
    policies = (
        f"{PAY_IS_ALLOWED[:-1]}, {{name: ask, target: ship, effect: requires_approval,"
        " approvers: {roles: [admin]}, self_approval: true}]"
    )
    live.begin(apply_policies(live.world.db, live.world.admin.actor, policies))()
    approval = asked(live, ship(HOSTILE), text=HOSTILE)
    paid = asked(live, call("pay", amount=7), text=HOSTILE, slug="payer")
    outputs = [
        shell.run("approval", "list").stdout,
        shell.run("approval", "watch", "--once").stdout,
        shell.run("approval", "show", str(approval.id)).stdout,
        shell.run("approval", "show", str(paid.id)).stdout,
        shell.run("approval", "deny", str(approval.id), "--reason", HOSTILE, CORTEX_KEY=person.secret).stdout,
        shell.run("approval", "approve", str(approval.id), expect=4).stderr,
        shell.run("approval", "show", str(approval.id)).stdout,
        shell.run("approval", "list", "--all").stdout,
    ]
    for shown_text in outputs:
        assert not INVISIBLE & set(shown_text), shown_text
        # A line of somebody's text cannot pass for one of ours.
        assert not any(line.startswith("status  approved") for line in shown_text.splitlines())
    assert "[bold]markup[/bold]" in outputs[2]
    assert re.search(r"policy +org:ask@(\d+\.\d+) \(dev_only\)", outputs[2]), "the version stands once"
    assert "\\x202egnp.exe" in outputs[6]


def test_the_example_in_the_docs_decides(live: Live, shipping: Shipping) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "approvals.md").read_text()
    example = page.split("```python\n")[1].split("```")[0]
    patch, other = asked(live), asked(live, ship("2.0"), slug="shipper-2")
    subprocess.run([sys.executable, "-c", example], env=live.shell.environment, check=True, timeout=60)
    assert end_of(live, patch.job_id) is JobStatus.COMPLETED
    assert end_of(live, other.job_id) is JobStatus.FAILED
    assert shipping.shipped == ["1.0.1 to production"]
