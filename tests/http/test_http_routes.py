"""One working request for every route of the OpenAPI document. The other HTTP tests bend these requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import uuid_utils.compat

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentDraft, ModelConfig
from cortex_plane.calls.model import CallDraft, ResolutionRequest
from cortex_plane.calls.verbs import calls, resolutions
from cortex_plane.dashboard import PAGES
from cortex_plane.db.database import Database
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.http.metrics import Metrics
from cortex_plane.jobs.model.jobs import Cancellation, JobDraft
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.main.api_process import create_app
from cortex_plane.sessions.model.sessions import SessionDraft, SessionKind
from cortex_plane.tenancy.model.access import Actor, KeyDraft, ModelKeyDraft, Permission, Provider
from cortex_plane.tenancy.model.identities import ClaimDraft, InvitationDraft, LinkDraft
from cortex_plane.tenancy.model.orgs import AbsenceDraft, MemberDraft, Role, TeamDraft
from cortex_plane.tenancy.verbs import connections, keys, links, logins, orgs
from tests.fixtures.atlases import plain, publish
from tests.fixtures.credentials import token_for
from tests.fixtures.notifications import dead_letter
from tests.fixtures.people import Person, World, with_key
from tests.fixtures.proofs import receipted
from tests.fixtures.stages import SHIP_HASH, asking_agent, asking_job, card_of, held_job
from tests.fixtures.standing_approvals import given_standing
from tests.fixtures.tool_confirmations import DIGEST, confirmed
from tests.fixtures.webhooks import System

FREE_FORM = frozenset({"payload", "context", "metadata", "skill_config", "arguments", "parameters", "answers"})
"""The fields that take any JSON object."""
ANY_JSON = frozenset({"result"})
"""The fields that take any JSON."""
IN_TWO_DAYS = (datetime.now(UTC) + timedelta(days=2)).isoformat()
HELLO = {
    "checkpoint_id": "hello",
    "trigger": {"type": "session_start"},
    "mode": "blocking",
    "questions": [{"question_id": "ok", "question": "Shall we begin?", "response_type": "boolean"}],
}
OPEN = frozenset(
    {
        "/healthz",
        "/readyz",
        "/schemas/checkpoint/v1.json",
        "/schemas/atlas/v1.json",
        "/v1/approvals/decide",
        "/v1/enrolments",
    }
)
"""What needs no key."""
SERVICES = frozenset({"POST /v1/connections/{connection_id}/messages", "POST /v1/connections/{connection_id}/link"})
"""What only a program may do: it speaks for other people."""


@dataclass(frozen=True)
class Stage:
    """The ids of things that stand ready, each in the state that its example needs."""

    team: str
    spare_team: str
    member: str
    key: str
    own_key: str
    """Of whoever opened the session, and not the one that they call with."""
    own_browser_session: str
    browser_session: str
    """Of `member`."""
    connection: str
    hook: str
    """A connection that is a webhook."""
    agent: str
    spare_agent: str
    session: str
    ending_session: str
    job: str
    cancelled_job: str
    held_job: str
    """It ran two steps, and waits for an answer about `call`."""
    call: str
    result: str
    approval: str
    """It waits for a decision; the digest of its arguments is `SHIP_HASH`."""
    asking_call: str
    """It waits for another decision."""
    card: str
    """It asks whether a call happened. It has a receipt, which is only a row."""
    colleague: str
    """Stands in for others."""
    handed_on: str
    """Another approval, which waits for a decision of whoever opened the session."""
    absence: str
    delivery: str
    """A message that was given up."""
    standing: str
    """A standing approval, from a request of whoever opened the session."""
    atlas: str
    """It has two versions."""
    steward: str
    """Whom an atlas may be handed over to."""
    atlas_version: str
    next_atlas_version: str
    confirmation: str
    """Of the tool `files.read_query`, in the version `DIGEST`."""
    elsewhere: str
    """A session of an agent that runs elsewhere."""
    elsewhere_ending: str
    """Another one, which ends."""
    elsewhere_call: str
    """A call of it that has begun; the digest of its arguments is `SHIP_HASH`."""
    gated: str
    """A session of an agent that runs elsewhere, whose gate `hello` asks."""
    resolution: str
    """Of `ship.now` with the arguments of `SHIP_HASH`, in `elsewhere_ending`."""
    executed_call: str
    """A call that was executed under it."""
    mapping: str
    """Of whoever opened the session."""
    claim: str
    """Somebody had a code of theirs, and waits for them to confirm it."""
    doubtful_claim: str
    invited: str
    """Somebody who has not followed their invitation yet."""
    invited_mapping: str
    newcomer: str
    """Somebody who has no channel of their own yet."""
    enrolment_code: str = field(metadata={"credential": True})
    link_code: str = field(metadata={"credential": True})
    """Links a channel to the admin."""
    token: str = field(metadata={"credential": True})
    """Decides a request as whoever opened its session."""

    @classmethod
    async def build(cls, world: World, owner: UUID | None = None, opened_by: UUID | None = None) -> Stage:
        """With sessions and jobs of one member, by default of the admin, or opened with the key of a service."""
        db, admin = world.db, world.admin.actor
        acting = replace(admin, user_account_id=owner or admin.user_account_id, key_id=opened_by or admin.key_id)
        team = await orgs.create_team(db, admin, TeamDraft(slug="crew", name="Crew"))
        spare_team = await orgs.create_team(db, admin, TeamDraft(slug="spare", name="Spare"))
        member = await orgs.create_member(db, admin, MemberDraft(display_name="Mel", roles=[Role.MEMBER]))
        key = await keys.create_key(db, admin, KeyDraft(name="spare", roles=[Role.GUEST]))
        spare_agent = await agents.create_agent(
            db,
            admin,
            AgentDraft(
                name="Spare", slug="spare", role="None", team="main", model_config=ModelConfig(model="scripted")
            ),
        )
        session = await session_lifecycle.create(db, acting, SessionDraft(agent="deployer"))
        ending = await session_lifecycle.create(db, acting, SessionDraft(agent="deployer"))
        job = await jobs.submit(db, acting, JobDraft(agent="deployer", session_id=session.id))
        cancelled = await jobs.submit(db, acting, JobDraft(agent="deployer", session_id=session.id))
        await steering.cancel(db, acting, cancelled.id, Cancellation())
        held = await held_job(world, acting)
        doubtful = await held_job(world, acting, await agents.get_agent(db, admin, "payer"))
        colleague = await orgs.create_member(db, admin, MemberDraft(display_name="Cass", roles=[Role.MEMBER]))
        absence = await orgs.create_absence(
            db,
            admin,
            AbsenceDraft(member_id=member.id, delegate_id=colleague.id, ends_at=datetime.now(UTC) + timedelta(days=1)),
        )
        code = LinkDraft(code=(await links.issue_link_code(db, acting)).code, external_user_id="stage-owner")
        mapping = await links.redeem_link_code(db, world.service.actor, world.connection.id, code)
        claim, doubtful_claim = [await _claim(world, acting, sender) for sender in ("claims", "doubtful")]
        invited = await connections.invite(
            db, admin, InvitationDraft(email="ida@example.com", display_name="Ida"), mailing=True
        )
        # Nobody could decide what a guest's job asks for, so theirs would not wait.
        person = await orgs.get_member(db, admin, owner) if owner else None
        guest = person is not None and person.roles == [Role.GUEST]
        shipper = await asking_agent(world)
        asking = await asking_job(world, shipper, admin if guest else acting)
        other = await asking_job(world, shipper, admin if guest else acting)
        apart = acting if opened_by is None else replace(acting, user_account_id=None)
        elsewhere = await session_lifecycle.create(db, apart, SessionDraft(agent="deployer", kind=SessionKind.EXTERNAL))
        failing = await session_lifecycle.create(db, apart, SessionDraft(agent="deployer", kind=SessionKind.EXTERNAL))
        begun = CallDraft(tool="ship.now", arguments={"version": "1"}, dispatch=True, sender="stage")
        elsewhere_call = await calls.authorize_call(db, apart, elsewhere.id, begun)
        await keys.put_model_key(db, admin, Provider.ANTHROPIC, ModelKeyDraft(key="sk-ant-of-the-stage-0001"))
        atlas, versions = random_id(), [random_id(), random_id()]
        for version in versions:
            desk = [{"capability_id": "desk", "actions": ["ticket.*"]}]
            await publish(world, plain(atlas, version, capabilities=desk))
        await publish(world, plain("com.example.gated", random_id(), checkpoints=[HELLO]))
        gated = SessionDraft(agent="deployer", kind=SessionKind.EXTERNAL, atlases=["com.example.gated"])
        about = ResolutionRequest(action="ship.now", arguments={"version": "1"})
        resolution = await resolutions.resolve(db, apart, failing.id, about)
        executed = await resolutions.execute_resolution(db, apart, resolution.id, begun)
        return cls(
            team=str(team.id),
            spare_team=str(spare_team.id),
            member=str(member.id),
            key=str(key.key.id),
            own_key=str((own := await with_key(db, world.org_id, acting.user_account_id or UUID(int=0))).actor.key_id),
            own_browser_session=str(await _logged_in(world, own)),
            browser_session=str(await _logged_in(world, await with_key(db, world.org_id, member.id))),
            connection=str(world.connection.id),
            hook=str((await System.connected(world, "stage hook")).id),
            agent=str(world.agent.id),
            spare_agent=str(spare_agent.id),
            session=str(session.id),
            ending_session=str(ending.id),
            job=str(job.id),
            cancelled_job=str(cancelled.id),
            held_job=str(held.job),
            call=str(held.call),
            result=str(held.result),
            approval=str(asking.approval),
            asking_call=str(other.call),
            card=str(await receipted(world, await card_of(world, doubtful.call))),
            colleague=str(colleague.id),
            handed_on=str(asking.other),
            absence=str(absence.id),
            delivery=str(await dead_letter(world, asking.other)),
            standing=await given_standing(world, other.approval, acting),
            elsewhere=str(elsewhere.id),
            elsewhere_ending=str(failing.id),
            elsewhere_call=str(elsewhere_call.id),
            gated=str((await session_lifecycle.create(db, apart, gated)).id),
            resolution=str(resolution.id),
            executed_call=str(executed.id),
            atlas=atlas,
            steward=str((await world.person(Role.STEWARD, name="Sam")).member_id),
            atlas_version=versions[0],
            next_atlas_version=versions[1],
            confirmation=await confirmed(world),
            mapping=str(mapping.id),
            claim=claim,
            doubtful_claim=doubtful_claim,
            invited=str(invited.member.id),
            invited_mapping=str(invited.mapping.id),
            newcomer=str((await orgs.create_member(db, admin, MemberDraft(display_name="Nia"))).id),
            enrolment_code=(
                await logins.issue_enrolment_code(
                    db, admin, (await orgs.create_member(db, admin, MemberDraft(display_name="Noe"))).id
                )
            ).code,
            link_code=(await links.issue_link_code(db, admin)).code,
            token=await token_for(world, other.approval, admin if guest else acting),
        )

    def with_id(self, name: str, id: str) -> Stage:
        return replace(self, **{name: id})

    @classmethod
    def names(cls) -> list[str]:
        """Of the ids: a credential names its org itself."""
        return [each.name for each in fields(cls) if not each.metadata]


async def _claim(world: World, actor: Actor, sender: str) -> str:
    """Somebody types a code of this person."""
    code = (await links.issue_link_code(world.db, actor)).code
    draft = ClaimDraft(code=code, external_user_id=sender, display_name="@somebody")
    return str((await links.claim_link(world.db, world.service.actor, world.connection.id, draft)).id)


async def _logged_in(world: World, person: Person) -> UUID:
    """The id of a browser session of theirs."""
    link = await logins.issue_own_login_link(world.db, person.actor)
    secret = await logins.log_in(world.db, link.url_path.rpartition("/")[2])
    return (await logins.authenticate_session(world.db, secret)).key_id


@dataclass(frozen=True)
class Example:
    """A request that succeeds when the right caller sends it."""

    route: str
    params: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] | None = None

    @property
    def method(self) -> str:
        return self.route.split()[0]

    @property
    def path(self) -> str:
        return self.route.split()[1].format(**self.params)

    async def send(self, http: httpx.AsyncClient, headers: dict[str, str]) -> httpx.Response:
        return await http.request(self.method, self.path, params=self.query, json=self.body, headers=headers)

    async def send_raw(self, http: httpx.AsyncClient, headers: dict[str, str], content: str | bytes) -> httpx.Response:
        raw = content.encode() if isinstance(content, str) else content
        sent = {"Content-Type": "application/json", **headers}
        return await http.request(self.method, self.path, params=self.query, content=raw, headers=sent)


def random_id() -> str:
    return str(uuid_utils.compat.uuid7())


def examples(s: Stage) -> list[Example]:
    """In an order in which all of them succeed one after the other. Bodies name every field there is."""
    team = {"team": s.team}
    atlas_version = {"atlas_id": s.atlas, "version": s.atlas_version}
    member = {"member_id": s.member}
    connection = {"connection_id": s.connection}
    hook = {"connection_id": s.hook}
    agent = {"agent": s.agent}
    session = {"session_id": s.session}
    job = {"job_id": s.job}
    held = {"job_id": s.held_job}
    limit = {"limit": "5"}
    model = {
        "model": "scripted", "temperature": 0.5, "max_tokens": 1000, "context_tokens": 50000, "context_turns": 100, "system_prompt": "Be brief.",
        "script": [{"text": "Done."}], "stand_in": "script",
    }  # fmt: skip
    limits = {
        "max_concurrent_jobs": 2, "max_memory_mb": 64, "timeout_seconds": 60, "step_timeout_seconds": 50,
        "call_timeout_seconds": 40, "chunk_timeout_seconds": 30, "max_iterations": 20, "token_budget": 10_000,
        "cost_budget_usd": 2.5, "daily_token_budget": 100_000, "daily_cost_budget_usd": 10.5,
        "retry_base_seconds": 0.5, "retry_cap_seconds": 60.5, "idle_timeout_seconds": 600,
    }  # fmt: skip
    demanded = {
        "name": "careful", "target": "deploy*", "effect": "requires_approval", "when": "args.force", "clearance": 1,
        "template": "dev_review", "timeout_seconds": 600, "remind_before_seconds": 60, "on_deny": "continue",
        "self_approval": False,
    }  # fmt: skip
    skills = {"checkpoint_granularity": "per_step", "side_effect_tools": ["deploy"], "own": {"a": [1]}}
    return [
        Example("GET /v1/me"),
        Example("POST /v1/me/login-links"),
        Example("GET /v1/me/browser-sessions", query=limit),
        Example("DELETE /v1/me/browser-sessions/{browser_session_id}", {"browser_session_id": s.own_browser_session}),
        Example("DELETE /v1/me/browser-sessions"),
        Example("POST /v1/me/keys", body={"name": "my laptop", "expires_in_days": 30}),
        Example("GET /v1/me/keys", query=limit),
        Example("POST /v1/me/keys/{key_id}/revoke", {"key_id": s.own_key}),
        Example("POST /v1/orgs", body={"slug": "third", "name": "Third", "admin_name": "Tia"}),
        Example("GET /v1/orgs", query=limit),
        Example("GET /v1/org"),
        Example("PATCH /v1/org", body={"name": "Renamed", "settings": {
            "guests_may_chat": True, "redact": ["*iban*"], "end_paused_after_seconds": 86_400,
            "approval_channels": ["email", "webhook"], "policy_changes": "direct",
        }}),
        Example("POST /v1/org/signing-secret", body={"forget": True}),
        Example("POST /v1/teams", body={"slug": "ops", "name": "Ops", "parent": s.team}),
        Example("GET /v1/teams", query=limit),
        Example("GET /v1/teams/{team}", team),
        Example("PATCH /v1/teams/{team}", team, body={"name": "Crew 2"}),
        Example("DELETE /v1/teams/{team}", {"team": s.spare_team}),
        Example(
            "POST /v1/members",
            body={"display_name": "Max", "clearance": 3, "roles": ["member"], "teams": [s.team]},
        ),
        Example("GET /v1/members", query={**limit, "role": "member"}),
        Example("GET /v1/members/{member_id}", member),
        Example(
            "PATCH /v1/members/{member_id}",
            member,
            body={
                "display_name": "Mel 2", "clearance": 4, "roles": ["operator"], "teams": [s.team],
                "active": True,
            },
        ),
        Example("GET /v1/members/{member_id}/mappings", member, limit),
        Example("POST /v1/members/{member_id}/enrolment-codes", {"member_id": s.newcomer}),
        Example("POST /v1/enrolments", body={"code": s.enrolment_code, "key_name": "laptop"}),
        Example("GET /v1/members/{member_id}/browser-sessions", member, limit),
        Example(
            "DELETE /v1/members/{member_id}/browser-sessions/{browser_session_id}",
            {**member, "browser_session_id": s.browser_session},
        ),
        Example("DELETE /v1/members/{member_id}/browser-sessions", member),
        Example(
            "POST /v1/members/invite",
            body={
                "email": "bea@example.com", "display_name": "Bea", "clearance": 3, "roles": ["approver"], "teams": [s.team],
            },
        ),
        Example(
            "DELETE /v1/members/{member_id}/mappings/{mapping_id}",
            {"member_id": s.invited, "mapping_id": s.invited_mapping},
        ),
        Example("GET /v1/me/mappings", query=limit),
        Example("DELETE /v1/me/mappings/{mapping_id}", {"mapping_id": s.mapping}),
        Example("POST /v1/me/addresses", body={"email": "me@example.com"}),
        Example(
            "POST /v1/connections/{connection_id}/link",
            connection,
            body={"code": s.link_code, "external_user_id": "u-88"},
        ),
        Example("POST /v1/me/link-codes"),
        Example("GET /v1/me/link-claims"),
        Example("POST /v1/me/link-claims/{mapping_id}/confirm", {"mapping_id": s.claim}),
        Example("POST /v1/me/link-claims/{mapping_id}/refuse", {"mapping_id": s.doubtful_claim}),
        Example("GET /v1/absences", query={**limit, "member_id": s.member, "only_open": "true"}),
        Example("GET /v1/absences/{absence_id}", {"absence_id": s.absence}),
        Example("POST /v1/absences/{absence_id}/cancel", {"absence_id": s.absence}),
        Example(
            "POST /v1/absences",
            body={
                "member_id": s.member, "delegate_id": s.colleague, "starts_at": "2026-01-01T00:00:00Z",
                "ends_at": IN_TWO_DAYS, "reason": "the sea",
            },
        ),
        Example("GET /v1/delegates", query={"approval_id": s.handed_on, "name": "Mel 2"}),
        Example(
            "POST /v1/keys",
            body={
                "name": "bot", "roles": ["member"], "permissions": ["policy.write"], "member_id": None, "expires_in_days": 30,
                "apps": None,
            },
        ),
        Example("GET /v1/keys", query=limit),
        Example("GET /v1/keys/{key_id}", {"key_id": s.key}),
        Example("POST /v1/keys/{key_id}/revoke", {"key_id": s.key}),
        Example(
            "POST /v1/connections",
            body={"channel_type": "x-slack", "name": "workspace", "config": {}, "secrets": {}, "agent": s.agent},
        ),
        Example(
            "POST /v1/connections",
            body={"channel_type": "webhook", "name": "chat", "url": "https://hooks.example/chat"},
        ),
        Example(
            "PATCH /v1/connections/{connection_id}",
            hook,
            body={"url": "https://hooks.example/cortex?v=2", "config": {}, "secrets": {}, "agent": s.agent},
        ),
        Example("POST /v1/connections/{connection_id}/rotate-secret", hook),
        Example("POST /v1/connections/{connection_id}/check", hook),
        Example("GET /v1/channels"),
        Example("POST /v1/connections/{connection_id}/test", hook),
        Example(
            "POST /v1/connections/{connection_id}/mappings",
            hook,
            body={"member_id": s.member, "external_user": "mel@corp"},
        ),
        Example("GET /v1/connections", query=limit),
        Example("GET /v1/connections/{connection_id}", connection),
        Example(
            "PATCH /v1/connections/{connection_id}", connection, body={"name": "site 2", "enabled": True}
        ),
        Example(
            "POST /v1/connections/{connection_id}/messages",
            connection,
            body={
                "external_user_id": "u-9", "agent": s.agent, "text": "Hello", "display_name": "Uma",
                "metadata": {"locale": "en"},
            },
        ),
        Example(
            "POST /v1/agents",
            body={
                "name": "Writer", "slug": "writer", "role": "Writes", "team": s.team, "model_config": model,
                "description": "Writes things", "skill_config": skills, "resource_limits": limits,
                "channel_permissions": ["web"],
            },
        ),
        Example("GET /v1/agents", query={**limit, "status": "ACTIVE"}),
        Example("GET /v1/agents/{agent}", agent),
        Example(
            "PATCH /v1/agents/{agent}",
            {"agent": s.spare_agent},
            body={
                "name": "Spare 2", "role": "Some", "team": s.team, "status": "DISABLED",
                "description": "Spare", "model_config": model, "skill_config": skills,
                "resource_limits": limits, "channel_permissions": ["web", "slack"],
            },
        ),
        Example("GET /v1/agents/{agent}/versions", agent, limit),
        Example("DELETE /v1/agents/{agent}", {"agent": s.spare_agent}),
        Example(
            "POST /v1/sessions",
            body={
                "agent": s.agent, "kind": "external", "title": "A run", "context": {"ticket": 7}, "atlases": [s.atlas],
                "outside_id": "thread-7", "on_behalf_of": None,
            },
        ),
        Example(
            "GET /v1/sessions",
            query={**limit, "status": "ACTIVE", "agent": s.agent, "member_id": s.member, "outside_id": "thread-7"},
        ),
        Example("GET /v1/decided-calls", query={**limit, "agent": s.agent, "since": "2026-01-01T00:00:00Z"}),
        Example("GET /v1/sessions/{session_id}", session),
        Example(
            "PATCH /v1/sessions/{session_id}", session, body={"title": "Renamed", "context": {"ticket": 8}}
        ),
        Example("POST /v1/sessions/{session_id}/messages", session, body={"text": "And then?"}),
        Example("GET /v1/sessions/{session_id}/messages", session, limit),
        Example("GET /v1/sessions/{session_id}/memory", session, limit),
        Example(
            "POST /v1/sessions/{session_id}/calls",
            {"session_id": s.elsewhere},
            body={
                "tool": "ship.later", "arguments": {"version": "2"}, "risk": "low", "timeout_seconds": 5.0,
                "on_uncertain": "fail", "dispatch": False, "sender": "try-1", "runner": "p1", "says": "Now?",
                "parameters": {"type": "object"}, "read_only": False, "key": "stage-1",
                "callback": s.hook,
            },
        ),
        Example(
            "POST /v1/sessions/{session_id}/calls/batch",
            {"session_id": s.elsewhere},
            body={"calls": [{"tool": "ship.later", "arguments": {"version": "3"}, "key": "stage-batch"}]},
        ),
        Example(
            "POST /v1/hooks/{dialect}",
            {"dialect": "claude-code"},
            {"agent": s.agent, "defer": "true", "wait": "0"},
            body={
                "hook_event_name": "PreToolUse", "session_id": "f7178682", "tool_name": "Bash", "tool_input": {"command": "ls"},
                "tool_use_id": "toolu_1",
            },
        ),
        Example("GET /v1/calls", query={**limit, "session_id": s.elsewhere, "status": "intended"}),
        Example("GET /v1/calls/{call_id}", {"call_id": s.elsewhere_call}, {"wait": "0"}),
        Example(
            "POST /v1/calls/{call_id}/intent",
            {"call_id": s.elsewhere_call},
            body={"input_hash": SHIP_HASH, "sender": "stage", "runner": "p1", "did_not_happen": False, "renew": False},
        ),
        Example(
            "POST /v1/calls/{call_id}/outcome",
            {"call_id": s.elsewhere_call},
            body={"status": "completed", "result": {"ok": True}, "error": None, "attempt": 1, "probed": False},
        ),
        Example(
            "POST /v1/sessions/{session_id}/resolve",
            {"session_id": s.elsewhere},
            body={
                "goal": "Ship it", "action": "ship.now", "arguments": {"version": "1"}, "risk": "low",
                "ttl_seconds": 60,
                "request": "handbook",
            },
        ),
        Example("GET /v1/resolutions/{resolution_id}", {"resolution_id": s.resolution}),
        Example(
            "POST /v1/resolutions/{resolution_id}/execute",
            {"resolution_id": s.resolution},
            body={
                "tool": "ship.now", "arguments": {"version": "1"}, "risk": "low", "timeout_seconds": 5.0,
                "on_uncertain": "fail", "dispatch": True, "sender": "stage", "runner": "p1", "says": "Now?",
                "parameters": {"type": "object"}, "read_only": False, "key": "stage-2", "callback": s.hook,
            },
        ),
        Example(
            "POST /v1/resolutions/{resolution_id}/report",
            {"resolution_id": s.resolution},
            body={
                "call": s.executed_call,
                "outcome": {"status": "completed", "result": {"ok": True}, "error": None, "attempt": 1, "probed": False},
            },
        ),
        Example(
            "POST /v1/sessions/{session_id}/answers",
            {"session_id": s.gated},
            body={"gate": "hello", "answers": {"ok": True}, "call": None},
        ),
        Example("GET /v1/sessions/{session_id}/permissions", {"session_id": s.gated}),
        Example("GET /v1/sessions/{session_id}/state", {"session_id": s.elsewhere}),
        Example("PUT /v1/sessions/{session_id}/state", {"session_id": s.elsewhere}, body={"text": "a run", "replaces": 0}),
        Example(
            "POST /v1/sessions/{session_id}/complete",
            {"session_id": s.elsewhere},
            body={"result": {"n": 1}, "error": None},
        ),
        Example("POST /v1/sessions/{session_id}/usage", {"session_id": s.elsewhere}, body={
            "model": "anthropic:claude-sonnet-4-5", "prompt_tokens": 9, "completion_tokens": 2, "cache_read_tokens": 1, "cache_write_tokens": 1,
            "cost_micros": 3, "seconds": 0.5,
        }),
        Example("POST /v1/sessions/{session_id}/fail", {"session_id": s.elsewhere_ending}, body={"error": "gone", "result": None}),
        Example("GET /v1/sessions/{session_id}/events", session, {**limit, "after": "1"}),
        Example("POST /v1/sessions/{session_id}/pause", session, body={
            "reason": "lunch", "correlation_id": "calendar-12", "within_seconds": 60,
        }),
        Example("POST /v1/sessions/{session_id}/resume", session, body={"note": "back", "operator_input": None}),
        Example(
            "POST /v1/sessions/{session_id}/terminate",
            {"session_id": s.ending_session},
            body={"reason": "done"},
        ),
        Example(
            "POST /v1/jobs",
            body={
                "agent": s.agent, "payload": {"task": "deploy"}, "session_id": s.session, "max_retries": 2,
                "policies": [demanded], "atlases": [s.atlas],
            },
        ),
        Example(
            "GET /v1/jobs",
            query={**limit, "status": "PENDING", "session_id": s.session, "agent": s.agent},
        ),
        Example("GET /v1/jobs/{job_id}", job),
        Example("GET /v1/jobs/{job_id}/history", job),
        Example("GET /v1/jobs/{job_id}/events", held, {**limit, "after": "1", "follow": "session"}),
        Example("GET /v1/jobs/{job_id}/steps", held, {**limit, "above": "-1"}),
        Example("GET /v1/jobs/{job_id}/journal", held, {**limit, "above": "-1"}),
        Example("GET /v1/jobs/{job_id}/checkpoint", held),
        Example("GET /v1/jobs/{job_id}/results/{result_id}", {**held, "result_id": s.result}),
        Example("GET /v1/jobs/{job_id}/questions", held),
        Example("GET /v1/jobs/{job_id}/waits", held),
        Example("POST /v1/signals", body={"name": "paid", "key": "order-1", "payload": {"amount": 3}}),
        Example("GET /v1/signals", query={**limit, "name": "paid", "key": "order-1"}),
        Example(
            "POST /v1/jobs/{job_id}/calls/{call_id}/settle",
            {**held, "call_id": s.call},
            body={"verdict": "happened", "result": {"receipt": 7}, "note": "I called the bank"},
        ),
        Example("POST /v1/agent-requests/{request_id}/execute", {"request_id": s.job}),
        Example(
            "GET /v1/approvals",
            query={**limit, "status": "pending", "job_id": s.held_job, "session_id": s.session},
        ),
        Example("GET /v1/approvals/{approval_id}", {"approval_id": s.card}),
        Example(
            "POST /v1/approvals/{approval_id}/decide",
            {"approval_id": s.approval},
            body={
                "decision": "approved", "version": 1, "input_hash": SHIP_HASH, "reason": "fine",
                "arguments": {"version": "1.1"}, "answer": None,
                "standing": {
                    "same_arguments": True, "calls": 3, "seconds": 600, "condition": "args.version == '1.1'",
                },
            },
        ),
        Example(
            "GET /v1/deliveries", query={**limit, "status": "dead", "approval_id": s.handed_on}
        ),
        Example("GET /v1/deliveries/{delivery_id}", {"delivery_id": s.delivery}),
        Example("POST /v1/deliveries/{delivery_id}/resend", {"delivery_id": s.delivery}),
        Example("GET /v1/standing-approvals", query={**limit, "session_id": s.session, "active": "true"}),
        Example("GET /v1/standing-approvals/{standing_id}", {"standing_id": s.standing}),
        Example(
            "POST /v1/standing-approvals/{standing_id}/revoke",
            {"standing_id": s.standing},
            body={"reason": "enough of it"},
        ),
        Example(
            "POST /v1/approvals/decide",
            body={"token": s.token, "decision": "approved", "reason": "from my mail", "answer": None},
        ),
        Example(
            "POST /v1/approve-tool/{tool_call_id}",
            {"tool_call_id": s.asking_call},
            body={"approved": True, "reason": "fine", "version": 1},
        ),
        Example(
            "POST /v1/approvals/{approval_id}/delegate",
            {"approval_id": s.handed_on},
            body={"to": s.colleague, "reason": "I am on a train"},
        ),
        Example(
            "POST /v1/approvals/{approval_id}/answer",
            {"approval_id": s.card},
            body={"verdict": "happened", "result": {"receipt": 8}, "note": "I called the bank"},
        ),
        Example("POST /v1/jobs/{job_id}/pause", job, body={
            "reason": "let me look", "correlation_id": "incident-7", "within_seconds": 60,
        }),
        Example("POST /v1/jobs/{job_id}/resume", job, body={"note": "it is fine", "operator_input": "Go on."}),
        Example("POST /v1/jobs/{job_id}/cancel", job, body={"reason": "no longer needed"}),
        Example("POST /v1/jobs/{job_id}/resubmit", {"job_id": s.cancelled_job}),
        Example("GET /v1/audit", query={**limit, "session_id": s.session}),
        Example("GET /v1/audit", query=limit),
        Example("GET /v1/audit/verification"),
        Example("POST /v1/audit/roots"),
        Example("GET /v1/audit/roots", query=limit),
        Example("GET /v1/audit/keys"),
        Example("POST /v1/audit/keys"),
        Example("GET /v1/approvals/{approval_id}/receipt", {"approval_id": s.card}),
        Example("GET /v1/audit/export", query={"session_id": s.session}),
        Example(
            "POST /v1/policies",
            body={
                "text": "policies: [{name: everything-goes, target: '*', effect: allow}]", "dry_run": True,
                "note": "again", "expected_version": 1, "merge": True,
            },
        ),
        Example("GET /v1/policies"),
        Example("GET /v1/policies/versions", query=limit),
        Example("GET /v1/policies/versions/{version}", {"version": "1"}),
        Example(
            "POST /v1/policies/explain",
            body={
                "agent": s.agent, "tool": "deploy", "arguments": {"a": 1}, "read_only": False, "risk": "high",
                "session_kind": "conversation", "policies": [demanded],
            },
        ),
        Example(
            "POST /v1/policies/denied-tools",
            body={"agent": s.agent, "tools": [{"tool": "deploy", "read_only": False, "risk": "high"}]},
        ),
        Example(
            "POST /v1/policies/simulate",
            body={
                "text": "policies: [{name: everything-goes, target: '*', effect: allow}]",
                "since": "2026-01-01T00:00:00Z", "until": "2100-01-01T00:00:00Z", "limit": 10,
            },
        ),
        Example("POST /v1/policies/simulate", body={"text": "policies: []", "within_seconds": 60}),
        Example(
            "POST /v1/atlases", body={"manifest": plain("com.example.stage", "1"), "name": "stage.json"}
        ),
        Example(
            "POST /v1/atlases/test",
            body={
                "scenarios": json.dumps({"agent": s.agent, "scenarios": [{"name": "It", "expect": {"shut": []}}]}),
                "name": "stage.scenarios.yaml", "atlases": [{"manifest": plain("com.example.stage", "2"), "name": "a.json"}],
            },
        ),
        Example("GET /v1/atlases", query=limit),
        Example("GET /v1/atlases/{atlas_id}", {"atlas_id": s.atlas}),
        Example("GET /v1/atlases/{atlas_id}/versions", {"atlas_id": s.atlas}, limit),
        Example("GET /v1/atlases/{atlas_id}/versions/{version}", atlas_version, {"source": "true"}),
        Example(
            "GET /v1/atlases/{atlas_id}/diff",
            {"atlas_id": s.atlas},
            {"from": s.atlas_version, "to": s.next_atlas_version},
        ),
        Example("GET /v1/atlases/{atlas_id}/versions/{version}/rules", atlas_version, {"action": "ticket.delete"}),
        Example("GET /v1/atlases/{atlas_id}/versions/{version}/rules", atlas_version, {"capability": "desk"}),
        Example("POST /v1/atlases/{atlas_id}/versions/{version}/retire", atlas_version),
        Example("POST /v1/atlases/{atlas_id}/owner", {"atlas_id": s.atlas}, body={"member_id": s.steward}),
        Example("POST /v1/atlases/{atlas_id}/owner", {"atlas_id": s.atlas}, body={"team": "main"}),
        Example("GET /v1/platform/policies"),
        Example(
            "POST /v1/platform/policies",
            body={
                "text": "policies: [{name: no-rm, target: 'rm*', effect: deny}]", "dry_run": True, "note": "again",
                "expected_version": 1, "merge": False,
            },
        ),
        Example(
            "PUT /v1/model-keys/{provider}", {"provider": "openai"}, body={"key": "sk-of-the-stage-0002"}
        ),
        Example("GET /v1/model-keys"),
        Example("GET /v1/model-keys/{provider}", {"provider": "openai"}),
        Example("DELETE /v1/model-keys/{provider}", {"provider": "anthropic"}),
        Example(
            "GET /v1/usage",
            query={
                **limit, "by": "agent", "since": "2026-01-01T00:00:00Z", "until": "2100-01-01T00:00:00Z",
                "agent": s.agent, "job_id": s.job,
            },
        ),
        Example("GET /v1/jobs/{job_id}/usage", job),
        Example("GET /v1/tools"),
        Example("GET /v1/tools/versions", query={"app": "office"}),
        Example("GET /v1/tools/servers"),
        Example(
            "POST /v1/tools/confirmations",
            body={
                "tool": "files.read_query", "app": "office", "digest": DIGEST, "read_only": True, "idempotent": True,
                "risk": "low", "note": "looked at its source",
            },
        ),
        Example("GET /v1/tools/confirmations", query={**limit, "holding": "true"}),
        Example("GET /v1/tools/confirmations/{confirmation_id}", {"confirmation_id": s.confirmation}),
        Example("POST /v1/tools/confirmations/{confirmation_id}/revoke", {"confirmation_id": s.confirmation}),
        Example("GET /v1/workers"),
        Example("GET /schemas/checkpoint/v1.json"),
        Example("GET /schemas/atlas/v1.json"),
        Example("GET /healthz"),
        Example("GET /readyz"),
        Example("GET /metrics"),
    ]  # fmt: skip


_document: dict[str, Any] = {}


async def document(http: httpx.AsyncClient) -> dict[str, Any]:
    """The OpenAPI document, which is the same for every database: asked for once per process."""
    if not _document:
        _document.update((await http.get("/openapi.json")).json())
    return _document


def documented_routes(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """``GET /v1/…`` to its entry in the document."""
    return {
        f"{method.upper()} {path}": entry
        for path, methods in document["paths"].items()
        for method, entry in methods.items()
    }


def body_schema(document: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any] | None:
    if "requestBody" not in entry:
        return None
    return resolved(document, entry["requestBody"]["content"]["application/json"]["schema"])


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object, behind references and behind "or null"."""
    options = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
    chosen: dict[str, Any] = options[0]
    if "$ref" in chosen:
        chosen = document["components"]["schemas"][chosen["$ref"].rsplit("/", 1)[1]]
    return chosen


async def test_every_route_of_the_document_has_an_example_and_no_example_is_stale(
    http: httpx.AsyncClient, world: World
) -> None:
    routes = documented_routes(await document(http))
    shown = {example.route for example in examples(await Stage.build(world))}
    assert set(routes) - shown == set(), "a route without an example: add one to this file"
    assert shown - set(routes) == set(), "an example of a route that is gone"


async def test_the_examples_name_every_field_and_every_query_parameter(http: httpx.AsyncClient, world: World) -> None:
    whole = await document(http)
    made = examples(await Stage.build(world))
    forgotten: list[str] = []
    for route, entry in documented_routes(whole).items():
        own = [example for example in made if example.route == route]
        schema = body_schema(whole, entry)
        if schema is not None:
            bodies = [example.body for example in own if example.body is not None]
            forgotten += [f"{route} {name}" for name in _unnamed(whole, schema, bodies)]
        asked = {p["name"] for p in entry.get("parameters", []) if p["in"] == "query"} - {"cursor"}
        named = {name for example in own for name in example.query}
        forgotten += [f"{route} ?{name}" for name in asked ^ named]
    assert forgotten == []


def _unnamed(whole: dict[str, Any], schema: dict[str, Any], bodies: list[dict[str, Any]]) -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        given = [body[name] for body in bodies if name in body]
        if not given:
            yield name
        deeper = resolved(whole, inner)
        if "properties" in deeper:
            yield from (f"{name}.{each}" for each in _unnamed(whole, deeper, given))


async def test_every_example_works_for_the_right_caller(http: httpx.AsyncClient, world: World) -> None:
    for example in examples(await Stage.build(world)):
        caller = world.service if example.route in SERVICES else world.admin
        answer = await example.send(http, caller.headers)
        assert answer.is_success, f"{example.route}: {answer.text}"


async def test_every_route_under_v1_says_which_permission_it_asks_for(http: httpx.AsyncClient) -> None:
    whole = await document(http)
    assert whole["openapi"] == "3.1.0"
    for route, entry in documented_routes(whole).items():
        if " /v1/" in route:
            assert entry["x-permission"] in set(Permission), route


def test_what_is_not_in_the_document_is_an_alias_of_what_is(db: Database) -> None:
    app = create_app(db, Metrics())
    shown: set[tuple[str, str]] = set()
    hidden: set[tuple[str, str]] = set()
    for entry in app.entries:
        for method in entry.methods:
            (shown if entry.in_document else hidden).add((method, entry.path))
    aliases = {(method, path.removeprefix("/v1")) for method, path in shown if "/agents" in path}
    aliases |= {
        (method, path.replace("/v1", "/api"))
        for method, path in shown
        if path.startswith(("/v1/agent-requests", "/v1/approve-tool"))
    }
    # A token in a path is refused: there is nothing to document.
    aliases |= {("POST", f"/api/approvals/{{token}}/{verdict}") for verdict in ("approve", "deny")}
    # Spec 1's paths for deciding by a token.
    aliases |= {("POST", f"/api/approvals/{verdict}") for verdict in ("approve", "deny")}
    # What is signed and has no key: nothing that a document could describe would be accepted there.
    aliases |= {("POST", "/v1/webhooks/{connection_id}")}
    # What vendors send to a connection of a channel, in their own protocols.
    aliases |= {(method, "/v1/connections/{connection_id}/inbound") for method in ("GET", "POST")}
    pages = {(method, route.path) for each in PAGES for route in each.router for method in route.methods}
    assert hidden == aliases | pages
