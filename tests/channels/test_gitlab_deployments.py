"""Deployments to protected environments of GitLab, which wait for the plane's approval and are started by it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import asyncpg
import httpx
import orjson
import pytest
import pytest_asyncio
from starlette.datastructures import State
from structlog.testing import capture_logs

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Choice
from cortex_plane.calls.verbs import deadlines
from cortex_plane.channels.gitlab import GitLabChannel
from cortex_plane.channels.vendor_http import VendorAnswer, VendorClient
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import Forbidden
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.store import LEASE
from cortex_plane.notify.verbs import channel_events, deliveries
from cortex_plane.notify.verbs.inbound import VendorRequest
from cortex_plane.tenancy.model.identities import DeliveryStatus
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.channel_listener import ChannelListener
from tests.channels.behaviour import PUBLIC_URL, link
from tests.channels.held_deployments import DeploymentStage, unpaced
from tests.channels.interactive_behaviour import InteractiveStage, Plane
from tests.channels.test_gitlab_behaviour import PLACE, SECRET, GitLabStage
from tests.emulators.gitlab import GitLabEmulator, HeldJob, Hook
from tests.emulators.vendor_server import VendorFault
from tests.fixtures.approvals import decide, pending, shown
from tests.fixtures.clock import Clock
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import make_agent, whole

ADA = {"id": 11, "username": "ada", "name": "Ada"}
ASK = (
    "policies:\n  - name: deploys\n    target: gitlab.deploy\n    effect: requires_approval\n"
    f'    approvers: {{roles: [approver]}}\n    timeout: 1d\n    channels: [{{gitlab: "{PLACE}"}}]\n'
)
ALLOW = "policies: [{name: deploys, target: gitlab.deploy, effect: allow}]"
DENY = "policies: [{name: deploys, target: gitlab.deploy, effect: deny, reason: It is a holiday.}]"
REJECTED, STARTED = ("failed", 0), ("pending", 1)
"""The status of a job, and how often it was started."""


class Died(BaseException):
    """In the place of a process that is killed."""


class MortalClient(VendorClient):
    """Requests of a process that may die just before one of them, or just after GitLab did what it says."""

    dies: tuple[str, str] | None = None

    async def request(self, method: str, url: str, **more: Any) -> VendorAnswer:
        when, path = self.dies or ("", "-")
        is_last = url.endswith(path) and method == "POST"
        if is_last and when == "before":
            raise Died
        answer = await super().request(method, url, **more)
        if is_last:
            raise Died
        return answer


@dataclass
class Stage(DeploymentStage):
    emulator: GitLabEmulator
    client: MortalClient

    def request(self, hook: Hook, secret: str = SECRET) -> VendorRequest:
        return VendorRequest("POST", {}, hook.headers(secret), hook.body)

    async def policies(self, text: str) -> None:
        await apply_policies(self.world.db, self.world.admin.actor, text)

    async def deploy(self, environment: str = "production", project: str = "acme/shop", **more: Any) -> HeldJob:
        held, hook = self.emulator.hold(project, environment, more.pop("by", ADA), **more)
        await self.plane.take(self.request(hook))
        return held

    async def asked(self, policies: str = ASK, **more: Any) -> tuple[HeldJob, Approval]:
        await self.policies(policies)
        held = await self.deploy(**more)
        (approval,) = await pending(self.world)
        return held, approval

    async def resend(self) -> None:
        dead = await self.verdict_delivery()
        assert dead.status is DeliveryStatus.DEAD
        await deliveries.resend_delivery(self.world.db, self.world.admin.actor, dead.id)
        await self.plane.send()


def job_of(held: HeldJob) -> tuple[str, int]:
    return held.job_status, held.plays


@pytest_asyncio.fixture
async def stage(strict: World, admin: asyncpg.Connection) -> AsyncIterator[Stage]:
    client = MortalClient(Allowed.parse("127.0.0.1"))
    async with GitLabEmulator().serve() as emulator:
        gitlab = GitLabStage(emulator, GitLabChannel(client, poll_seconds=0.01))
        gitlab.channel.traits = unpaced(gitlab.channel.traits)
        connection_id = await gitlab.connect(strict)
        agent = await make_agent(strict, [], slug="deployments")
        await admin.execute("update channel_connection set agent_id = $2 where id = $1", connection_id, agent.id)
        bea = await strict.person(Role.APPROVER, name="Bea")
        yield Stage(Plane(strict, cast("InteractiveStage", gitlab), connection_id), bea, emulator, client)
        await client.close()


@pytest.mark.proves("D.830")
async def test_webhook_over_http_asks_people_and_the_approved_job_is_started(
    stage: Stage, admin: asyncpg.Connection, http: httpx.AsyncClient, app_state: State
) -> None:
    await stage.policies(ASK)
    app_state.inbound = stage.plane.door
    held, hook = stage.emulator.hold("acme/shop", "production", ADA)
    url = f"/v1/connections/{stage.plane.connection_id}/inbound"
    with capture_logs():
        forged = await http.post(url, content=hook.body, headers=hook.headers("guess"))
    assert (forged.status_code, await admin.fetchval("select count(*) from channel_event")) == (401, 0)
    assert (await http.post(url, content=hook.body, headers=hook.headers(SECRET))).status_code == 200
    await stage.go_on()
    (approval,) = await pending(stage.world)
    assert (approval.tool_name, approval.agent_name) == ("gitlab.deploy", "Agent deployments")
    card = stage.emulator.writes[-1]
    assert card.place == PLACE
    for words in ("acme/shop", "production", "279484c09fbe69ededfced8c1bb6e6d24616b468", str(held.id), "ada", "push"):
        assert words in card.body
    assert (held.verdicts, job_of(held)) == ([], ("manual", 0))
    await decide(stage.world, approval, by=stage.bea, reason="Ship it.")
    await stage.go_on()
    ((state, comment),) = held.verdicts
    assert state == "approved"
    assert comment.startswith("Approved by Bea.\n\n` Ship it. `")
    assert f"{PUBLIC_URL}/approvals/{approval.id}" in comment
    assert job_of(held) == STARTED
    assert await stage.call_status() is CallStatus.COMPLETED
    assert await admin.fetchval("select status from job where kind = 'external'") == "COMPLETED"
    assert (await stage.verdict_delivery()).status is DeliveryStatus.DELIVERED
    assert await whole(stage.world)


@pytest.mark.proves("D.830")
@pytest.mark.parametrize("end", ["policy", "denied", "expired"])
async def test_every_other_end_rejects_the_deployment(stage: Stage, admin: asyncpg.Connection, end: str) -> None:
    if end == "policy":
        await stage.policies(DENY)
        held = await stage.deploy()
    else:
        held, approval = await stage.asked()
        if end == "denied":
            await decide(stage.world, approval, Choice.DENIED, by=stage.bea, reason="Not today.")
        else:
            assert approval.deadline is not None
            clock = await Clock.install(admin, approval.deadline)
            await deadlines.tick(stage.world.db, new_id(), "scheduler")
            await clock.advance(timedelta(seconds=1))
        await stage.go_on()
    ((state, comment),) = held.verdicts
    assert (state, job_of(held)) == ("rejected", REJECTED)
    words = {"policy": "It is a holiday.", "denied": "Rejected by Bea.\n\n` Not today. `", "expired": "Rejected"}
    assert words[end] in comment
    assert await whole(stage.world)


async def test_policy_of_the_guide_asks_before_production_and_lets_others_pass(stage: Stage) -> None:
    guide = (Path(__file__).parents[2] / "docs/channels/gitlab.md").read_text()
    (policy,) = (block for block in re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL) if "gitlab.deploy" in block)
    await stage.policies(policy)
    staging, production = await stage.deploy("staging"), await stage.deploy("production")
    assert [state for state, _ in staging.verdicts] == ["approved"]
    assert (job_of(staging), production.verdicts) == (STARTED, [])
    assert len(await pending(stage.world)) == 1


async def test_whoever_started_the_deployment_shaped_it(stage: Stage, admin: asyncpg.Connection) -> None:
    await link(admin, stage.world, stage.plane.connection_id, stage.bea, str(ADA["id"]))
    await stage.world.person(Role.APPROVER, name="Dan")
    _, approval = await stage.asked(ASK.replace("approvers:", "self_approval: false\n    approvers:"))
    with pytest.raises(Forbidden):
        await decide(stage.world, approval, by=stage.bea)


# What webhooks say, and what is so ------------------------------------------------------------------------------------


async def test_webhooks_again_and_out_of_order_ask_nobody_again(stage: Stage) -> None:
    held, approval = await stage.asked()
    for status in ("blocked", "running", "created"):
        await stage.plane.take(stage.request(stage.emulator.deployment_hook(held, status)))
    await decide(stage.world, approval, by=stage.bea)
    await stage.go_on()
    for status in ("approved", "success", "blocked"):
        await stage.plane.take(stage.request(stage.emulator.deployment_hook(held, status)))
    assert (await pending(stage.world), held.reviews, job_of(held)) == ([], 1, STARTED)


@pytest.mark.parametrize("what", ["manual", "running"])
async def test_deployment_that_waits_for_no_approval_is_nobodys_question(
    stage: Stage, admin: asyncpg.Connection, what: str
) -> None:
    """A manual job without a rule is blocked too; and a webhook may be late."""
    await stage.policies(ALLOW)
    held, hook = stage.emulator.hold("acme/shop", "production", ADA, required=0 if what == "manual" else 1)
    if what == "running":
        held.status = held.job_status = "running"
    await stage.plane.take(stage.request(hook))
    assert (held.reviews, held.plays) == (0, 0)
    assert await admin.fetchval("select count(*) from session where kind = 'external'") == 0


async def test_what_a_webhook_says_is_asked_from_gitlab(stage: Stage) -> None:
    await stage.policies(
        ASK.replace("target: gitlab.deploy", 'target: gitlab.deploy\n    when: args.environment == "production"')
    )
    held, hook = stage.emulator.hold("acme/web/open", "production", ADA)
    payload: dict[str, Any] = orjson.loads(hook.body)
    payload |= {"environment": "review", "ref": "lies", "user": {"id": 99, "username": "eve"}}
    payload["project"]["visibility_level"] = 0
    hook.body = orjson.dumps(payload)
    await stage.plane.take(stage.request(hook))
    (approval,) = await pending(stage.world)
    arguments = approval.arguments
    assert arguments == arguments | {"environment": "production", "ref": "main", "actor": "ada", "private": False}
    assert str(held.id) == arguments["deployment_id"]


async def test_deployment_that_cannot_be_read_is_a_dead_letter_after_a_while(
    stage: Stage, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    held, hook = stage.emulator.hold("acme/shop", "production", ADA)
    hidden = stage.emulator.projects.pop("acme/shop")
    with capture_logs():
        await stage.plane.take(stage.request(hook))
        for _ in channel_events.WAITS:
            await clock.advance(timedelta(seconds=channel_events.WAITS[-1]))
            await stage.go_on()
    dead = await stage.verdict_delivery()
    assert "may not read /projects/acme%2Fshop" in (dead.last_error or "")
    stage.emulator.projects["acme/shop"] = hidden
    await stage.resend()
    assert [state for state, _ in held.verdicts] == ["rejected"]


async def test_strangers_read_neither_names_nor_reasons(stage: Stage) -> None:
    held, approval = await stage.asked(project="acme/web/open")
    await decide(stage.world, approval, Choice.DENIED, by=stage.bea, reason="The key leaked.")
    await stage.go_on()
    ((_, comment),) = held.verdicts
    assert comment == f"Rejected.\n\n[Open it in Cortex Plane]({PUBLIC_URL}/approvals/{approval.id})"


async def test_long_reason_is_cut_to_what_gitlab_takes(stage: Stage) -> None:
    held, approval = await stage.asked()
    await decide(stage.world, approval, Choice.DENIED, by=stage.bea, reason="@ada ``` " + "no " * 300)
    await stage.go_on()
    ((_, comment),) = held.verdicts
    assert 230 < len(comment) <= 255
    assert "```` @ada ``` no" in comment
    assert comment.endswith(f"({PUBLIC_URL}/approvals/{approval.id})")


# What GitLab does with a verdict --------------------------------------------------------------------------------------


async def test_rule_that_needs_more_approvals_keeps_the_job_waiting(stage: Stage) -> None:
    await stage.policies(ALLOW)
    held = await stage.deploy(required=2)
    ((state, comment),) = held.verdicts
    assert (state, job_of(held)) == ("approved", ("manual", 0))
    assert "1 more to approve at GitLab; then run the job there." in comment
    assert (await stage.verdict_delivery()).status is DeliveryStatus.DELIVERED


async def test_job_that_gitlab_starts_itself_is_started_once(stage: Stage) -> None:
    """Where the environment has a number of approvals instead of rules."""
    stage.emulator.has_rules = False
    await stage.policies(ALLOW)
    held = await stage.deploy()
    assert (held.reviews, job_of(held)) == (1, STARTED)


async def test_bot_that_may_not_approve_or_deploy_is_a_dead_letter_that_says_what_to_do(stage: Stage) -> None:
    stage.emulator.is_approver = stage.emulator.may_deploy = False
    await stage.policies(ALLOW)
    held = await stage.deploy()
    dead = await stage.verdict_delivery()
    for words in ("don't have permission to approve", "approval rule of the environment", "cortex delivery resend"):
        assert words in (dead.last_error or "")
    assert "acme/shop" in dead.member
    stage.emulator.is_approver = True
    await stage.resend()
    dead = await stage.verdict_delivery()
    assert "403 Forbidden" in (dead.last_error or "")
    assert "Allowed to deploy" in (dead.last_error or "")
    assert (held.reviews, held.plays) == (1, 0)
    stage.emulator.may_deploy = True
    await stage.resend()
    assert (held.reviews, job_of(held)) == (1, STARTED)


@pytest.mark.parametrize(
    ("status", "choice", "delivery"),
    [
        ("canceled", Choice.APPROVED, DeliveryStatus.DELIVERED),
        ("canceled", Choice.DENIED, DeliveryStatus.DELIVERED),
        ("success", Choice.APPROVED, DeliveryStatus.DELIVERED),
        ("running", Choice.DENIED, DeliveryStatus.DEAD),
    ],
)
async def test_deployment_that_is_over_while_people_decide_is_left_alone(
    stage: Stage, status: str, choice: Choice, delivery: DeliveryStatus
) -> None:
    held, approval = await stage.asked()
    held.status = held.job_status = status
    await decide(stage.world, approval, choice, by=stage.bea)
    await stage.go_on()
    assert (held.reviews, job_of(held)) == (0, (status, 0))
    verdict = await stage.verdict_delivery()
    assert verdict.status is delivery
    if delivery is DeliveryStatus.DEAD:
        assert "went on before the plane could reject it" in (verdict.last_error or "")


@pytest.mark.parametrize("status", ["canceled", "running"])
async def test_nobody_is_asked_any_more_once_gitlab_says_that_the_deployment_is_over(stage: Stage, status: str) -> None:
    held, approval = await stage.asked()
    held.status = held.job_status = status
    for _ in range(2):
        await stage.plane.take(stage.request(stage.emulator.deployment_hook(held, status)))
    await stage.go_on()
    ended = await shown(stage.world, approval.id)
    assert ended.status is ApprovalStatus.CANCELLED
    assert "Cancelled" in stage.emulator.writes[-1].body
    assert (held.reviews, job_of(held)) == (0, (status, 0))
    is_bypassed = status == "running"
    assert ((await stage.verdict_delivery()).status is DeliveryStatus.DEAD) == is_bypassed
    assert await whole(stage.world)


async def test_rejection_after_others_approved_says_so(stage: Stage) -> None:
    held, approval = await stage.asked()
    held.approvals.append({"user": {"id": 77}, "status": "approved", "comment": ""})
    await decide(stage.world, approval, Choice.DENIED, by=stage.bea)
    await stage.go_on()
    assert "cancel its job there" in ((await stage.verdict_delivery()).last_error or "")
    assert held.reviews == 0


@pytest.mark.proves("D.830")
@pytest.mark.parametrize(
    ("when", "path"),
    [("after", "/approval"), ("before", "/play"), ("after", "/play")],
    ids=["approved", "unplayed", "played"],
)
async def test_sender_that_dies_between_approval_and_record_repeats_and_loses_nothing(
    stage: Stage, admin: asyncpg.Connection, when: str, path: str
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    await stage.policies(ALLOW)
    stage.client.dies = (when, path)
    with capture_logs():
        held = await stage.deploy()
    assert (held.reviews, held.plays) == (1, int((when, path) == ("after", "/play")))
    assert (await stage.verdict_delivery()).status is DeliveryStatus.PENDING
    stage.client.dies = None
    if held.plays:
        held.job_status = "success"  # GitLab would run a manual job that is over once more.
    await clock.advance(LEASE + timedelta(seconds=1))
    await stage.go_on()
    assert (held.reviews, held.plays) == (1, 1)
    assert (await stage.verdict_delivery()).status is DeliveryStatus.DELIVERED
    assert await whole(stage.world)


@pytest.mark.parametrize("choice", [Choice.APPROVED, Choice.DENIED])
async def test_lost_answers_repeat_nothing(stage: Stage, admin: asyncpg.Connection, choice: Choice) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    held, approval = await stage.asked()
    stage.emulator.approval_faults.add(VendorFault(status=502, is_late=True))
    stage.emulator.play_faults.add(VendorFault(status=502, is_late=True))
    await decide(stage.world, approval, choice, by=stage.bea)
    with capture_logs():
        await stage.go_on()
        for _ in range(3):
            await clock.advance(timedelta(hours=1))
            await stage.go_on()
    assert (held.reviews, job_of(held)) == (1, STARTED if choice is Choice.APPROVED else REJECTED)
    assert (await stage.verdict_delivery()).status is DeliveryStatus.DELIVERED


FOUND = "select count(*) = 2 and exists (select from channel_listener where last_error is not null) from channel_event"

# Without webhooks -----------------------------------------------------------------------------------------------------


async def test_listener_finds_deployments_whose_webhook_never_came(stage: Stage, admin: asyncpg.Connection) -> None:
    """One project that cannot be read keeps nobody from the others."""
    await stage.policies(ASK)
    projects = "acme/gone, acme/shop,acme/web/open"
    await admin.execute(
        f"""update channel_connection set config = config || '{{"mode": "polling", "projects": "{projects}"}}'"""
    )
    old, _ = stage.emulator.hold("acme/shop", "production", ADA)
    old.created_at -= timedelta(days=31)
    lost, hook = stage.emulator.hold("acme/shop", "production", ADA)
    other, _ = stage.emulator.hold("acme/web/open", "staging", ADA)
    listener = ChannelListener(stage.world.db, stage.plane.door.channels, stage.plane.inbox.wake, pauses=(0.01,))
    with capture_logs():
        await listener.beat()
        async with asyncio.timeout(20):
            while not await admin.fetchval(FOUND):  # noqa: ASYNC110 -- only the database knows
                await asyncio.sleep(0.005)
        await listener.leave()
        await stage.plane.take(stage.request(hook))
    requests = await pending(stage.world)
    ids = {approval.arguments["deployment_id"] for approval in requests}
    assert ids == {str(lost.id), str(other.id)}
    assert "acme%2Fgone" in await admin.fetchval("select last_error from channel_listener")
    assert await admin.fetchval("select count(*) from channel_event where event_id like 'deployment:%'") == 2


async def test_listener_withdraws_the_question_about_a_deployment_whose_start_no_webhook_told(
    stage: Stage, admin: asyncpg.Connection
) -> None:
    held, approval = await stage.asked()
    await admin.execute(
        """update channel_connection set config = config || '{"mode": "polling", "projects": "acme/shop"}'"""
    )
    held.status = held.job_status = "running"
    listener = ChannelListener(stage.world.db, stage.plane.door.channels, stage.plane.inbox.wake, pauses=(0.01,))
    await listener.beat()
    async with asyncio.timeout(20):
        while not await admin.fetchval("select exists (select from channel_event where event_id like '%:over')"):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await listener.leave()
    await stage.go_on()
    assert (await shown(stage.world, approval.id)).status is ApprovalStatus.CANCELLED
    assert "Cancelled" in stage.emulator.writes[-1].body
    assert held.reviews == 0
