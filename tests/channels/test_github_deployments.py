"""Deployments that GitHub holds with a protection rule of the App, until the plane says whether they may go on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import asyncpg
import orjson
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from cortex_plane.approvals.model.approvals import Approval, Choice
from cortex_plane.calls.verbs import deadlines
from cortex_plane.channels.github import GitHubChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import Pause
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import CortexError, Forbidden, Unauthenticated
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.verbs import channel_events, deliveries
from cortex_plane.notify.verbs.inbound import MalformedEvent, VendorRequest
from cortex_plane.sessions.model.sessions import Termination
from cortex_plane.tenancy.model.identities import ConnectionChange, DeliveryStatus, MappingDraft
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import connections
from tests.channels.behaviour import PUBLIC_URL, link
from tests.channels.held_deployments import DeploymentStage, unpaced
from tests.channels.interactive_behaviour import InteractiveStage, Plane
from tests.channels.test_github_behaviour import PLACE, SECRET, GitHubStage
from tests.emulators import github_objects as objects
from tests.emulators.github import GitHubEmulator, HeldRun, Webhook
from tests.emulators.vendor_server import VendorFault
from tests.fixtures.approvals import decide, pending
from tests.fixtures.clock import Clock
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import make_agent, whole

ADA = objects.user("ada", 583231)
ASK = (
    "policies:\n  - name: deploys\n    target: github.deploy\n    effect: requires_approval\n"
    f'    approvers: {{roles: [approver]}}\n    timeout: 1d\n    channels: [{{github: "{PLACE}"}}]\n'
)
ALLOW = "policies: [{name: deploys, target: github.deploy, effect: allow}]"
DENY = "policies: [{name: deploys, target: github.deploy, effect: deny, reason: It is a holiday.}]"


@dataclass
class Stage(DeploymentStage):
    emulator: GitHubEmulator

    def request(self, webhook: Webhook, secret: str = SECRET) -> VendorRequest:
        return VendorRequest("POST", {}, self.emulator.headers_of(webhook, secret), webhook.body)

    async def deploy(
        self, environment: str = "production", repository: str = "acme/shop", by: dict[str, Any] = ADA
    ) -> HeldRun:
        run, webhook = await self.emulator.hold(repository, environment, by)
        await self.plane.take(self.request(webhook))
        return run

    async def asked(self) -> tuple[HeldRun, Approval]:
        run = await self.deploy()
        (approval,) = await pending(self.world)
        return run, approval


@pytest_asyncio.fixture
async def stage(strict: World, admin: asyncpg.Connection) -> AsyncIterator[Stage]:
    client = VendorClient(Allowed.parse("127.0.0.1"))
    async with GitHubEmulator().serve() as emulator:
        emulator.permissions |= {"deployments": "write", "actions": "read"}
        github = GitHubStage(emulator, GitHubChannel(client))
        github.channel.traits = unpaced(github.channel.traits)
        connection_id = await github.connect(strict)
        agent = await make_agent(strict, [], slug="deployments")
        await admin.execute("update channel_connection set agent_id = $2 where id = $1", connection_id, agent.id)
        bea = await strict.person(Role.APPROVER, name="Bea")
        yield Stage(Plane(strict, cast("InteractiveStage", github), connection_id), bea, emulator)
        await client.close()


async def test_policy_lets_a_deployment_through_at_once(stage: Stage) -> None:
    await apply_policies(stage.world.db, stage.world.admin.actor, ALLOW)
    run = await stage.deploy()
    ((state, comment),) = run.verdicts
    assert state == "approved"
    assert comment.startswith("Approved.")
    assert "/jobs/" in comment
    assert await stage.call_status() is CallStatus.COMPLETED
    assert await whole(stage.world)


async def test_policy_forbids_a_deployment(stage: Stage) -> None:
    await apply_policies(stage.world.db, stage.world.admin.actor, DENY)
    run = await stage.deploy()
    ((state, comment),) = run.verdicts
    assert state == "rejected"
    assert "It is a holiday." in comment
    assert await stage.call_status() is CallStatus.REJECTED
    assert await pending(stage.world) == []


@pytest.mark.proves("D.830")
async def test_people_decide_where_policy_asks_them(stage: Stage, admin: asyncpg.Connection) -> None:
    await apply_policies(stage.world.db, stage.world.admin.actor, ASK)
    run, approval = await stage.asked()
    assert run.verdicts == []
    assert (approval.tool_name, approval.agent_name) == ("github.deploy", "Agent deployments")
    card = stage.emulator.writes[-1]
    assert card.place == PLACE
    for shown in ("production", "f95f852bd8fca8fcc58a9a2d6c842781e32a215e", str(run.run_id), "ada"):
        assert shown in card.body
    await decide(stage.world, approval, by=stage.bea, reason="Ship it.")
    await stage.go_on()
    ((state, comment),) = run.verdicts
    assert state == "approved"
    assert "Approved by Bea." in comment
    assert "Ship it." in comment
    assert f"/approvals/{approval.id}" in comment
    assert await stage.call_status() is CallStatus.COMPLETED
    assert await admin.fetchval("select status from job where kind = 'external'") == "COMPLETED"
    assert (await stage.verdict_delivery()).status is DeliveryStatus.DELIVERED
    assert await whole(stage.world)


async def test_comment_of_an_approver_releases_the_deployment(stage: Stage, admin: asyncpg.Connection) -> None:
    """The card and the deployment go over the same connection."""
    await link(admin, stage.world, stage.plane.connection_id, stage.bea, "99")
    await apply_policies(stage.world.db, stage.world.admin.actor, ASK)
    run, _ = await stage.asked()
    body = stage.emulator.writes[-1].body
    (command,) = [line.strip() for line in body.splitlines() if line.strip().startswith("/approve")]
    webhook = await stage.emulator.say(PLACE, command.removesuffix("[reason]"), objects.user("bea", 99))
    await stage.plane.take(stage.request(webhook))
    await stage.go_on()
    assert [state for state, _ in run.verdicts] == ["approved"]


@pytest.mark.parametrize("end", ["denied", "expired", "cancelled", "responded"])
async def test_every_other_end_rejects_the_deployment(stage: Stage, admin: asyncpg.Connection, end: str) -> None:
    await apply_policies(stage.world.db, stage.world.admin.actor, ASK)
    run, approval = await stage.asked()
    assert approval.deadline is not None
    if end == "denied":
        await decide(stage.world, approval, Choice.DENIED, by=stage.bea, reason="Not today.")
    elif end == "responded":
        await decide(stage.world, approval, Choice.RESPONDED, by=stage.bea)
    elif end == "expired":
        clock = await Clock.install(admin, approval.deadline)
        await deadlines.tick(stage.world.db, new_id(), "scheduler")
        await clock.advance(timedelta(seconds=1))
    else:
        assert approval.session_id is not None
        termination = Termination(reason="Not needed.")
        await session_lifecycle.terminate(stage.world.db, stage.world.admin.actor, approval.session_id, termination)
    await stage.go_on()
    ((state, comment),) = run.verdicts
    assert state == "rejected"
    assert comment.startswith("Rejected")
    if end == "denied":
        assert "Rejected by Bea." in comment
        assert "Not today." in comment
    assert await whole(stage.world)


async def test_whoever_vouched_for_the_account_that_started_it_is_a_cause(
    stage: Stage, admin: asyncpg.Connection
) -> None:
    world = stage.world
    await apply_policies(world.db, world.admin.actor, ASK)
    vic = await world.person(Role.ADMIN, name="Vic")
    draft = MappingDraft(member_id=stage.bea.member_id, external_user=str(ADA["id"]))
    await connections.map_member(world.db, vic.actor, stage.plane.connection_id, draft)
    _, approval = await stage.asked()
    causes = await admin.fetchval("select causes from approval_request where id = $1", approval.id)
    assert {vic.member_id, stage.bea.member_id} <= set(causes)


async def test_same_webhook_again_asks_nobody_again(stage: Stage) -> None:
    await apply_policies(stage.world.db, stage.world.admin.actor, ASK)
    run, webhook = await stage.emulator.hold("acme/shop", "production", ADA)
    for _ in range(2):
        await stage.plane.take(stage.request(webhook))
    (approval,) = await pending(stage.world)
    await decide(stage.world, approval, by=stage.bea)
    await stage.go_on()
    await stage.plane.take(stage.request(webhook))
    assert len(run.verdicts) == 1


async def test_policy_of_the_guide_asks_before_production_and_lets_others_pass(stage: Stage) -> None:
    guide = (Path(__file__).parents[2] / "docs/channels/github.md").read_text()
    (policy,) = (block for block in re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL) if "github.deploy" in block)
    await apply_policies(stage.world.db, stage.world.admin.actor, policy)
    staging, production = await stage.deploy("staging"), await stage.deploy("production")
    assert [state for state, _ in staging.verdicts] == ["approved"]
    assert production.verdicts == []
    (approval,) = await pending(stage.world)
    assert approval.tool_name == "github.deploy"


async def test_each_deployment_has_a_request_of_its_own(stage: Stage) -> None:
    await apply_policies(stage.world.db, stage.world.admin.actor, ASK)
    staging, production = await stage.deploy("staging"), await stage.deploy("production")
    requests = await pending(stage.world)
    assert len(requests) == 2
    await decide(stage.world, requests[0], by=stage.bea)
    await stage.go_on()
    assert [len(staging.verdicts), len(production.verdicts)] == [1, 0]


@pytest.mark.parametrize("event", ["asked", "decided"])
async def test_step_that_died_halfway_is_repeated_without_a_second_verdict(
    stage: Stage, admin: asyncpg.Connection, event: str
) -> None:
    await apply_policies(stage.world.db, stage.world.admin.actor, ALLOW if event == "asked" else ASK)
    await admin.execute(
        """create table before as select event_id, payload from channel_event with no data;
        create function note_payload() returns trigger language plpgsql security definer as $$
        begin insert into public.before values (new.event_id, new.payload); return null; end $$;
        create trigger note_payload after insert on channel_event for each row execute function note_payload()"""
    )
    run = await stage.deploy()
    if event == "decided":
        (approval,) = await pending(stage.world)
        await decide(stage.world, approval, by=stage.bea)
        await stage.go_on()
    # As if whoever handled them had died before it could say that it did.
    await admin.execute(
        """update channel_event e set status = 'pending', settled_at = null, next_attempt_at = plane_now(), payload = b.payload
        from before b where b.event_id = e.event_id"""
    )
    await stage.go_on()
    assert await admin.fetchval("select count(*) from channel_event where status = 'done'") == (
        1 if event == "asked" else 2
    )
    assert len(run.verdicts) == 1
    assert await admin.fetchval("select count(*) from session where kind = 'external'") == 1
    assert await whole(stage.world)


ENDS = "update on job for each row when (new.status = 'COMPLETED')"


@pytest.mark.parametrize(
    "write",
    [
        f"{write} for each row"
        for write in ("insert on external_call", "update on external_call", "insert on notification")
    ]
    + [ENDS],
)
async def test_step_that_fails_halfway_goes_on_where_it_was(
    stage: Stage, admin: asyncpg.Connection, write: str
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    await apply_policies(stage.world.db, stage.world.admin.actor, ALLOW)
    await admin.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin raise 'no'; end $$;"
        f"create trigger refuse before {write} execute function refuse()"
    )
    with capture_logs():
        run = await stage.deploy()
    # The verdict is written before the session ends.
    assert len(run.verdicts) == (write == ENDS)
    await admin.execute("drop function refuse cascade")
    await clock.advance(timedelta(seconds=channel_events.WAITS[0]))
    await stage.go_on()
    assert [state for state, _ in run.verdicts] == ["approved"]
    assert await stage.call_status() is CallStatus.COMPLETED
    assert await admin.fetchval("select count(*) from session where kind = 'external'") == 1
    assert await admin.fetchval("select status from job where kind = 'external'") == "COMPLETED"
    assert await whole(stage.world)


async def test_vendor_that_is_away_hears_the_verdict_later(stage: Stage, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    await apply_policies(stage.world.db, stage.world.admin.actor, ALLOW)
    stage.emulator.deployment_faults.add(VendorFault(status=502), 2)
    run = await stage.deploy()
    for _ in range(3):
        assert run.verdicts == []
        assert (await stage.verdict_delivery()).status is DeliveryStatus.PENDING
        await clock.advance(timedelta(hours=1))
        await stage.plane.send()
        if run.verdicts:
            break
    assert [state for state, _ in run.verdicts] == ["approved"]


async def test_verdict_that_is_refused_is_a_dead_letter_that_can_be_sent_again(stage: Stage) -> None:
    await apply_policies(stage.world.db, stage.world.admin.actor, ALLOW)
    stage.emulator.permissions["deployments"] = "read"
    run = await stage.deploy()
    dead = await stage.verdict_delivery()
    assert dead.status is DeliveryStatus.DEAD
    assert "Resource not accessible by integration" in (dead.last_error or "")
    assert "acme/shop" in dead.member
    assert "production" in dead.member
    stage.emulator.permissions["deployments"] = "write"
    await deliveries.resend_delivery(stage.world.db, stage.world.admin.actor, dead.id)
    await stage.plane.send()
    assert [state for state, _ in run.verdicts] == ["approved"]


async def test_verdict_waits_while_its_connection_is_disabled(stage: Stage) -> None:
    await apply_policies(stage.world.db, stage.world.admin.actor, ASK)
    run, approval = await stage.asked()
    for is_enabled in (False, True):
        change = ConnectionChange(enabled=is_enabled)
        await connections.update_connection(
            stage.world.db, stage.world.admin.actor, stage.plane.connection_id, change, None
        )
        if not is_enabled:
            await decide(stage.world, approval, by=stage.bea)
        await stage.go_on()
        assert len(run.verdicts) == is_enabled


async def test_policy_that_changed_since_the_approval_has_the_last_word(stage: Stage) -> None:
    await apply_policies(stage.world.db, stage.world.admin.actor, ASK)
    run, approval = await stage.asked()
    await decide(stage.world, approval, by=stage.bea)
    await apply_policies(stage.world.db, stage.world.admin.actor, DENY)
    await stage.go_on()
    assert [state for state, _ in run.verdicts] == ["rejected"]


async def test_session_that_stays_on_hold_rejects_the_deployment(stage: Stage, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    await apply_policies(stage.world.db, stage.world.admin.actor, ASK)
    run, approval = await stage.asked()
    assert approval.session_id is not None
    await steering.pause_session(stage.world.db, stage.world.admin.actor, approval.session_id, Pause(reason="Wait."))
    await decide(stage.world, approval, by=stage.bea)
    for _ in channel_events.WAITS:
        await stage.go_on()
        assert run.verdicts == []
        await clock.advance(timedelta(seconds=channel_events.WAITS[-1]))
    await stage.go_on()
    ((state, comment),) = run.verdicts
    assert state == "rejected"
    assert "held" in comment


async def test_public_repository_reads_neither_names_nor_reasons(stage: Stage) -> None:
    await apply_policies(stage.world.db, stage.world.admin.actor, ASK)
    run = await stage.deploy(repository="acme/open")
    (approval,) = await pending(stage.world)
    await decide(stage.world, approval, Choice.DENIED, by=stage.bea, reason="The key leaked.")
    await stage.go_on()
    ((_, comment),) = run.verdicts
    assert comment == f"Rejected.\n\n[Open it in Cortex Plane]({PUBLIC_URL}/approvals/{approval.id})"


async def test_reason_mentions_nobody(stage: Stage) -> None:
    await apply_policies(stage.world.db, stage.world.admin.actor, ASK)
    run, approval = await stage.asked()
    await decide(stage.world, approval, Choice.DENIED, by=stage.bea, reason="@ada `` <b> #12")
    await stage.go_on()
    ((_, comment),) = run.verdicts
    assert "``` @ada `` <b> #12 ```" in comment


async def test_whoever_started_the_deployment_shaped_it(stage: Stage, admin: asyncpg.Connection) -> None:
    await link(admin, stage.world, stage.plane.connection_id, stage.bea, str(ADA["id"]))
    dan = await stage.world.person(Role.APPROVER, name="Dan")
    two_humans = ASK.replace("approvers:", "self_approval: false\n    approvers:")
    await apply_policies(stage.world.db, stage.world.admin.actor, two_humans)
    run, approval = await stage.asked()
    with pytest.raises(Forbidden):
        await decide(stage.world, approval, by=stage.bea)
    await decide(stage.world, approval, by=dan)
    await stage.go_on()
    assert [state for state, _ in run.verdicts] == ["approved"]
    assert await whole(stage.world)


async def test_whoever_set_the_connection_up_shaped_what_it_asks(stage: Stage, admin: asyncpg.Connection) -> None:
    """They hold the secret with which they could have asked themselves."""
    await admin.execute(
        "update channel_connection set set_up_by = array[$2::uuid] where id = $1",
        stage.plane.connection_id, stage.bea.member_id,
    )  # fmt: skip
    await stage.world.person(Role.APPROVER, name="Dan")
    two_humans = ASK.replace("approvers:", "self_approval: false\n    approvers:")
    await apply_policies(stage.world.db, stage.world.admin.actor, two_humans)
    _, approval = await stage.asked()
    with pytest.raises(Forbidden):
        await decide(stage.world, approval, by=stage.bea)


@pytest.mark.parametrize("what", ["missing", "inactive"])
async def test_deployment_that_nobody_can_ask_for_is_rejected_with_words(
    stage: Stage, admin: asyncpg.Connection, what: str
) -> None:
    """After a while, in which somebody may set an agent. Otherwise it would wait at GitHub for a month."""
    clock = await Clock.install(admin, datetime.now(UTC))
    if what == "missing":
        await admin.execute("update channel_connection set agent_id = null")
    else:
        await admin.execute("update agent set status = 'DISABLED' where slug = 'deployments'")
    with capture_logs():
        run = await stage.deploy()
        payload = await admin.fetchval("select payload from channel_event")
        for _ in channel_events.WAITS:
            assert run.verdicts == []
            await clock.advance(timedelta(seconds=channel_events.WAITS[-1]))
            await stage.go_on()
    # As if its handler had died before it could say that it was done.
    await admin.execute(
        "update channel_event set status = 'pending', settled_at = null, next_attempt_at = plane_now(), payload = $1",
        payload,
    )
    with capture_logs():
        await stage.go_on()
    ((state, comment),) = run.verdicts
    assert state == "rejected"
    assert ("No agent is set" if what == "missing" else "takes no new sessions") in comment
    assert f"/channels/{stage.plane.connection_id}" in comment


async def test_agent_that_is_set_in_time_asks_for_the_deployment(stage: Stage, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    await apply_policies(stage.world.db, stage.world.admin.actor, ALLOW)
    agent_id = await admin.fetchval("select agent_id from channel_connection where id = $1", stage.plane.connection_id)
    await admin.execute("update channel_connection set agent_id = null")
    with capture_logs():
        run = await stage.deploy()
    await admin.execute("update channel_connection set agent_id = $1", agent_id)
    await clock.advance(timedelta(seconds=channel_events.WAITS[0]))
    await stage.go_on()
    assert [state for state, _ in run.verdicts] == ["approved"]


# What is not believed ------------------------------------------------------------------------------------------------


async def refused(stage: Stage, request: VendorRequest) -> CortexError:
    with pytest.raises(CortexError) as error, capture_logs():
        await stage.plane.store(request)
    return error.value


async def test_forged_deployment_is_refused(stage: Stage) -> None:
    _, webhook = await stage.emulator.hold("acme/shop", "production", ADA)
    assert isinstance(await refused(stage, stage.request(webhook, "another secret")), Unauthenticated)


@pytest.mark.parametrize(
    "url",
    [
        "https://api.github.com/repos/acme/other/actions/runs/7/deployment_protection_rule",
        "https://api.github.com/repos/acme/shop/actions/runs/7/../../deployment_protection_rule",
        "https://api.github.com/repos/acme/shop/actions/runs/7/deployment_protection_rule?x=1",
        "https://api.github.com/repos/acme/shop/actions/runs/x/deployment_protection_rule",
    ],
)
async def test_deployment_without_its_run_is_malformed(stage: Stage, url: str) -> None:
    _, webhook = await stage.emulator.hold("acme/shop", "production", ADA, url=url)
    assert isinstance(await refused(stage, stage.request(webhook)), MalformedEvent)


async def test_verdict_goes_to_the_connection_and_not_where_the_webhook_says(stage: Stage) -> None:
    await apply_policies(stage.world.db, stage.world.admin.actor, ALLOW)
    elsewhere = "https://evil.example/repos/acme/shop/actions/runs/5001/deployment_protection_rule"
    run, webhook = await stage.emulator.hold("acme/shop", "production", ADA, url=elsewhere)
    assert run.run_id == 5001
    await stage.plane.take(stage.request(webhook))
    assert [state for state, _ in run.verdicts] == ["approved"]


@pytest.mark.parametrize("what", ["old", "installation", "token"])
async def test_other_deployments_are_not_ours(stage: Stage, admin: asyncpg.Connection, what: str) -> None:
    _, webhook = await stage.emulator.hold("acme/shop", "production", ADA)
    payload = orjson.loads(webhook.body)
    if what == "old":
        payload["deployment"]["created_at"] = (datetime.now(UTC) - timedelta(days=31)).isoformat()
    elif what == "installation":
        payload["installation"]["id"] = 9002
    else:
        await admin.execute("update channel_connection set config = config - 'installation_id'")
    webhook.body = orjson.dumps(payload)
    await stage.plane.take(stage.request(webhook))
    assert await admin.fetchval("select count(*) from channel_event") == 0
