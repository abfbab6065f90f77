"""The figures of spec 4, §11: each process counts what it did, and a scrape shows it under the spec's names."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.agents.model.tools import UncertainOutcome
from cortex_plane.approvals.model.approvals import DelegationDraft
from cortex_plane.approvals.verbs import approvals
from cortex_plane.calls.verbs import deadlines
from cortex_plane.db.database import Database
from cortex_plane.grpc.upsquad.governance.v1.approval_pb2 import ListApprovalsRequest
from cortex_plane.http.app import framed
from cortex_plane.http.metrics import Metrics
from cortex_plane.jobs.model.jobs import JobStatus, Pause, PauseSource, Resumption
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import SetupError
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.meters import Meters, metered, meters
from cortex_plane.main.api_process import create_app
from cortex_plane.main.worker_process import serve_metrics
from cortex_plane.policies.model.policies import Template
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.notifier import Notifier
from cortex_plane.worker.scheduler import Scheduler
from cortex_plane.worker.tools.app import App
from tests.channels.behaviour import drain, link
from tests.channels.postbox import Postbox, connect
from tests.conftest import PAGES, Urls
from tests.fixtures.approvals import Shipping, decide, ship, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.external_gates import opened, sent
from tests.fixtures.people import World, apply_policies
from tests.fixtures.servers import MASTER_KEY
from tests.fixtures.workers import call, make_agent, submit, turn, until, working
from tests.grpc.door import Client, open_door

ORG, OTHER = UUID(int=5), UUID(int=6)
DOCS = Path(__file__).parent.parent.parent / "docs" / "reference" / "metrics.md"


def values(exposition: str) -> dict[str, float]:
    """Each series, with its labels in order, and its value."""
    found: dict[str, float] = {}
    for line in exposition.splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name, _, labels = series.rstrip("}").partition("{")
            found[f"{name}{{{','.join(sorted(labels.split(',')))}}}"] = float(value)
    return found


def happen(by: Meters) -> None:
    """Everything that is counted, once for one org, and a pause more for another."""
    by.paused(ORG, PauseSource.OPERATOR)
    by.paused(OTHER, PauseSource.APPROVAL)
    by.suspended(ORG, 0.02)
    by.resumed(ORG, PauseSource.APPROVAL)
    by.woken(ORG, 0.004)
    by.requested(ORG, Template.DEV_REVIEW)
    by.joined(ORG)
    by.decided(ORG, Template.DEV_REVIEW, "approved", "dashboard", 3700)
    by.expired(ORG, Template.CRITICAL_PATH)
    by.ticked(0.3)
    by.corrupt(ORG, "crc_mismatch")
    by.escalated(ORG, Template.FULL_PIPELINE, 2)
    by.delegated(ORG)
    by.called_back("email", "ok")
    by.forged("api_key")
    by.delivered("webhook", "retry")


EXPECTED = {
    f'runtime_sessions_paused_total{{pause_source="operator",tenant_id="{ORG}"}}': 1,
    f'runtime_sessions_paused_total{{pause_source="approval",tenant_id="{OTHER}"}}': 1,
    f'runtime_sessions_resumed_total{{resumed_by="approval",tenant_id="{ORG}"}}': 1,
    f'checkpoints_corrupt_total{{corruption_type="crc_mismatch",tenant_id="{ORG}"}}': 1,
    f'runtime_pause_latency_seconds_count{{tenant_id="{ORG}"}}': 1,
    f'runtime_pause_latency_seconds_sum{{tenant_id="{ORG}"}}': 0.02,
    f'runtime_resume_latency_seconds_bucket{{le="0.005",tenant_id="{ORG}"}}': 1,
    f'approval_requests_total{{template="dev_review",tenant_id="{ORG}"}}': 1,
    f'approval_decisions_total{{channel="dashboard",decision="approved",tenant_id="{ORG}"}}': 1,
    f'approval_resolution_seconds_bucket{{le="3600.0",template="dev_review",tenant_id="{ORG}"}}': 0,
    f'approval_resolution_seconds_bucket{{le="14400.0",template="dev_review",tenant_id="{ORG}"}}': 1,
    f'approval_expiries_total{{template="critical_path",tenant_id="{ORG}"}}': 1,
    f'approval_dedup_hits_total{{tenant_id="{ORG}"}}': 1,
    "approval_scheduler_tick_duration_seconds_count{}": 1,
    f'approval_escalations_total{{template="full_pipeline",tenant_id="{ORG}",to_level="2"}}': 1,
    f'approval_delegations_total{{tenant_id="{ORG}"}}': 1,
    'approval_webhook_invocations_total{channel="email",result="ok"}': 1,
    'approval_deliveries_total{channel="webhook",result="retry"}': 1,
    'forged_rows_total{kind="api_key"}': 1,
}


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    made = Metrics()
    with metered(made.meters):
        yield made
    made.close()


@pytest.mark.proves("S4.30")
def test_what_happens_is_counted_under_the_specs_names(metrics: Metrics) -> None:
    happen(meters())
    found = values(metrics.exposition().decode())
    assert {series: found.get(series) for series in EXPECTED} == EXPECTED


def labels_of(exposition: str) -> dict[str, set[str]]:
    """The labels of each metric, under the name that the docs use."""
    labels: dict[str, set[str]] = {}
    for series in values(exposition):
        name, _, inside = series.rstrip("}").partition("{")
        base = re.sub(r"_(bucket|count|sum|created)$", "", name)
        labels.setdefault(base, set()).update(set(re.findall(r'(\w+)="', inside)) - {"le"})
    return {name: names for name, names in labels.items() if name != "target_info"}


@pytest.mark.proves("S4.30")
async def test_each_metric_of_a_scrape_is_documented_with_its_labels_and_each_documented_one_is_triggered(
    metrics: Metrics, db: Database, world: World
) -> None:
    """No label holds an id but the tenant's. What happens to requests happens here by requests."""
    happen(meters())
    metrics.meters.count_suspended({ORG: 1})
    inbound = {"external_user_id": "u-1", "agent": world.agent.slug, "text": "Hello"}
    path = f"/v1/connections/{world.connection.id}/messages"
    transport = httpx.ASGITransport(framed(create_app(db, metrics)))
    async with httpx.AsyncClient(transport=transport, base_url="http://plane", headers=PAGES) as http:
        assert (await http.post(path, json=inbound, headers=world.service.headers)).status_code == 201
        assert (await http.get("/v1/me", headers={"Authorization": "Bearer nonsense"})).status_code == 401
        assert (await http.post("/login/cortex_login_" + "x" * 43)).status_code == 401
    async with open_door(db, metrics=metrics) as door, door.channel() as channel:
        client = Client(channel, world.admin)
        await client.call(client.approvals.ListApprovals, ListApprovalsRequest())
    documented = {
        name: set(re.findall(r"`(\w+)`", names))
        for name, names in re.findall(
            r"^\| `(\w+)` \| (?:counter|histogram|gauge) \|([^|]*)\|", DOCS.read_text(), re.MULTILINE
        )
    }
    assert labels_of(metrics.exposition().decode()) == documented
    ids = {name for names in documented.values() for name in names if name.endswith("_id")}
    assert ids == {"tenant_id"}


SOURCES = Path(__file__).parent.parent.parent / "src" / "cortex_plane"


@pytest.mark.proves("S4.30")
def test_everything_that_is_counted_happens_somewhere() -> None:
    sources = "".join(path.read_text() for path in SOURCES.rglob("*.py"))
    moments = {name for name in vars(Meters) if not name.startswith("_")} - {"count", "record"}
    assert {name for name in moments if f"meters().{name}(" not in sources} == set()


def test_where_nobody_reads_nothing_is_counted() -> None:
    happen(meters())
    made = Metrics()
    with metered(made.meters):
        pass
    happen(meters())
    assert "approval_requests" not in made.exposition().decode()
    made.close()


def test_a_clock_that_went_back_counts_as_no_time(metrics: Metrics) -> None:
    meters().suspended(ORG, -3)
    found = values(metrics.exposition().decode())
    assert found[f'runtime_pause_latency_seconds_sum{{tenant_id="{ORG}"}}'] == 0


@pytest.mark.proves("S4.31")
async def test_suspended_sessions_are_counted_at_the_scrape_for_every_tenant(
    http: httpx.AsyncClient, db: Database, world: World, other: World, admin: asyncpg.Connection
) -> None:
    async def now() -> dict[str, float]:
        found = values((await http.get("/metrics", headers=world.admin.headers)).text)
        return {k.split('"')[1]: v for k, v in found.items() if k.startswith("runtime_suspended_sessions_current")}

    assert await now() == {}
    mine, theirs = await world.say(), await other.say()
    second = await world.say("more", external_user_id="u-2")
    assert await now() == {}, "nothing waits"
    for delivery in (mine, second, theirs):
        assert delivery.job_id is not None
        await _park(admin, delivery.job_id)
    assert await now() == {str(world.org_id): 2, str(other.org_id): 1}
    assert theirs.job_id is not None
    await steering.resume(db, other.admin.actor, theirs.job_id, Resumption())
    assert await now() == {str(world.org_id): 2, str(other.org_id): 0}, "none is 0, and not nothing"
    person = await world.person(Role.ADMIN)
    assert (await http.get("/metrics", headers=person.headers)).status_code == 403


async def _park(admin: asyncpg.Connection, job_id: UUID) -> None:
    """As a worker leaves a job that somebody holds."""
    await admin.execute("update job set status = 'RUNNING' where id = $1", job_id)
    await admin.execute(
        """
        update job set status = 'PAUSED', holds = '{operator}', held_at = plane_now(), runnable_at = null
        where id = $1
        """,
        job_id,
    )


@pytest.mark.proves("S4.31")
def test_a_process_without_an_api_shows_its_own() -> None:
    with serve_metrics(0) as address:
        happen(meters())
        found = values(httpx.get(address, trust_env=False).text)
        assert {series: found.get(series) for series in EXPECTED} == EXPECTED
        port = int(address.split(":")[2].split("/")[0])
        assert address.startswith("http://127.0.0.1:")
        with pytest.raises(SetupError) as taken, serve_metrics(port):
            pass
        assert (taken.value.code, "CORTEX_METRICS_PORT" in taken.value.hint) == ("cannot_listen", True)
    with pytest.raises(httpx.ConnectError):
        httpx.get(address, trust_env=False)


@pytest.mark.proves("S4.31")
def test_a_worker_shows_what_it_counted_when_it_is_told_a_port(urls: Urls, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CORTEX_", "DATABASE_"))}
    environment |= {
        "DATABASE_URL": urls.app, "CORTEX_METRICS_PORT": str(port), "CORTEX_MASTER_KEY": MASTER_KEY,
    }  # fmt: skip
    worker = subprocess.Popen(
        [sys.executable, "-m", "cortex_plane", "worker", "--processes=1"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert worker.stdout is not None
    try:
        said = []
        for line in worker.stdout:
            said.append(line)
            if line.startswith("worker "):
                break
        assert worker.poll() is None, "".join(said)
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False)
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert f"http://127.0.0.1:{port}/metrics" in "".join(said)
    finally:
        worker.terminate()
        worker.communicate(timeout=30)
    assert worker.returncode == 0


@pytest.mark.proves("S4.30")
async def test_pauses_are_counted_by_what_caused_them(
    http: httpx.AsyncClient, metrics: Metrics, world: World, admin: asyncpg.Connection
) -> None:
    app = App("tests")

    @app.tool(on_uncertain="ask_human", timeout=5)
    async def lose() -> str:
        """Loses its line."""
        raise UncertainOutcome("The line broke.")

    lost = await submit(world, await make_agent(world, [turn(call("lose"))], slug="loser"))
    async with working(world.db, app):
        await until(world, lost, JobStatus.PAUSED)
    owner = await world.person(Role.MEMBER)
    for person, session in ((owner, await opened(http, owner)), (world.admin, await opened(http, world.service))):
        await sent(http, person, f"/sessions/{session}/pause")
        await sent(http, person, f"/sessions/{session}/resume")
    asks = "policies: [{name: ask, target: ship, effect: requires_approval, approvers: {roles: [admin]}}]"
    await apply_policies(world.db, world.admin.actor, asks)
    await waiting(world, Shipping())
    clock = await Clock.install(admin, datetime(2026, 12, 1, tzinfo=UTC))
    talk = await world.say()
    await admin.execute(
        "update job set status = 'CANCELLED', runnable_at = null where session_id = $1", talk.session_id
    )
    await clock.advance(timedelta(days=2))
    assert "idle" in (await deadlines.tick(world.db, new_id(), "scheduler")).done
    figures = values(metrics.exposition().decode())
    counts = {
        labels["pause_source"]: count
        for series, count in figures.items()
        if series.startswith("runtime_sessions_paused_total")
        and (labels := dict(re.findall(r'(\w+)="([^"]*)"', series)))
    }
    assert counts == {"policy": 1, "owner": 1, "operator": 1, "approval": 1, "idle": 1}
    resumed = {
        match[1]
        for series in figures
        if (match := re.match(r'runtime_sessions_resumed_total{resumed_by="(\w+)"', series))
    }
    assert resumed == {"owner", "operator"}


TERMS = """
policies:
  - {name: up, target: ship, effect: requires_approval, template: full_pipeline, timeout: 10h, escalate_before: 6h, remind_before: never,
     approvers: {roles: [operator, admin]}, escalate_to: [{roles: [approver]}], self_approval: true}
"""


@pytest.mark.proves("S4.30")
async def test_requests_and_pauses_are_counted_where_they_happen(
    metrics: Metrics, strict: World, admin: asyncpg.Connection
) -> None:
    """Of what else is counted, the tests of decisions from outside, corrupt checkpoints and forged rows see it happen."""
    seen: dict[str, float] = {}

    def counted(*names: str) -> None:
        """Each of these has grown since it was looked at last."""
        series = values(metrics.exposition().decode())
        for name in names:
            now = sum(value for key, value in series.items() if key.startswith(f"{name}{{"))
            assert now > seen.get(name, 0), name
            seen[name] = now

    paused = ("runtime_sessions_paused_total", "runtime_pause_latency_seconds_count")
    resumed = ("runtime_sessions_resumed_total", "runtime_resume_latency_seconds_count")
    operator, bea = await strict.person(Role.OPERATOR), await strict.person(Role.APPROVER, name="Bea")
    post, shipping = Postbox(), Shipping()
    await link(admin, strict, await connect(strict), operator, "op@example.com")
    await apply_policies(strict.db, strict.admin.actor, TERMS)
    first, (asked,) = await waiting(strict, shipping, ship(), ship())
    counted("approval_requests_total", "approval_dedup_hits_total", *paused)
    await drain(Notifier(strict.db, [post], "http://plane"))
    counted("approval_deliveries_total")
    await approvals.delegate(strict.db, operator.actor, asked.id, DelegationDraft(to=bea.member_id))
    counted("approval_delegations_total")
    await decide(strict, asked)
    async with working(strict.db, shipping.app):
        await until(strict, first, JobStatus.COMPLETED)
    counted("approval_decisions_total", "approval_resolution_seconds_count", *resumed)
    await waiting(strict, shipping, slug="late")
    clock = await Clock.install(admin, datetime.now(UTC) + timedelta(hours=6))
    scheduler = Scheduler(strict.db)
    await scheduler._turn()
    counted("approval_escalations_total", "approval_scheduler_tick_duration_seconds_count")
    await clock.advance(timedelta(hours=6))
    await scheduler._turn()
    counted("approval_expiries_total")
    last = await submit(strict, await make_agent(strict, [turn(text="Well.")], slug="quiet"))
    await steering.pause(strict.db, strict.admin.actor, last, Pause())
    counted(*paused)
    await steering.resume(strict.db, strict.admin.actor, last, Resumption())
    counted("runtime_sessions_resumed_total")
