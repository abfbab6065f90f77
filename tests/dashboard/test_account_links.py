"""Accounts of GitHub and GitLab that members link by logging in there, from the page to a decision by a comment."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import asyncpg
import httpx
import pytest
import pytest_asyncio
from starlette.datastructures import State

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels.github import GitHubChannel
from cortex_plane.channels.gitlab import GitLabChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.identities import ConnectionChange, MappingDraft
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import connections
from cortex_plane.tenancy.verbs.served_channels import ServedChannels
from tests.channels.behaviour import Deploying
from tests.channels.comment_interactive import PEOPLE, CommentStage
from tests.channels.interactive_behaviour import InteractiveStage, Plane
from tests.channels.test_github_behaviour import PLACE as GITHUB_PLACE
from tests.channels.test_github_behaviour import GitHubLog, GitHubStage
from tests.channels.test_gitlab_behaviour import PLACE as GITLAB_PLACE
from tests.channels.test_gitlab_behaviour import GitLabLog, GitLabStage
from tests.emulators import github_objects as objects
from tests.emulators.github import GitHubEmulator
from tests.emulators.gitlab import GitLabEmulator, gitlab_user
from tests.emulators.oauth import CLIENT_ID, CLIENT_SECRET, OAuthServer
from tests.emulators.vendor_server import VendorFault
from tests.fixtures.approvals import decide, shown, waiting
from tests.fixtures.clock import RunningClock
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.visitors import Visitor
from tests.fixtures.workers import call
from tests.tenancy.test_enrolments import added, enrolled
from tests.tenancy.test_one_human import TWO, asked_for
from tests.tenancy.test_one_human import decide as vote

BEA = PEOPLE["bea"]


@dataclass
class Stage:
    """A connection at whose vendor people log in, and the pages of the plane."""

    world: World
    http: httpx.AsyncClient
    comments: CommentStage
    login: OAuthServer
    served: ServedChannels
    connection_id: UUID
    place: str

    @property
    def channel_type(self) -> str:
        return self.comments.channel.channel_type

    @property
    def path(self) -> str:
        return f"/access/channels/accounts/{self.connection_id}"

    def account(self, name: str, id: int, **more: Any) -> dict[str, Any]:
        user = objects.account(name, id) if self.channel_type == "github" else gitlab_user(name, id)
        return {**user, **more}

    async def leave(self, visitor: Visitor) -> str:
        """Press the button; where the browser goes."""
        answer = await visitor.submit(await visitor.get("/access/channels"), self.path)
        assert answer.status_code == 200, answer.text
        address = re.search(r'id="vendor-page" href="([^"]+)"', answer.text)
        refresh = re.search(r'<meta http-equiv="refresh" content="0; url=([^"]+)"', answer.text)
        assert address
        assert refresh
        assert refresh[1] == address[1]
        return html.unescape(address[1])

    async def log_in(self, address: str, account: dict[str, Any], *, agrees: bool = True) -> str:
        """Somebody logs in at the vendor and agrees; where their browser is sent then."""
        self.login.visitor, self.login.agrees = account, agrees
        async with httpx.AsyncClient() as browser:
            answer = await browser.get(address)
        assert answer.status_code == 302, answer.text
        return answer.headers["location"].removeprefix("http://plane")

    async def come_back(self, visitor: Visitor, account: dict[str, Any]) -> httpx.Response:
        return await visitor.get(await self.log_in(await self.leave(visitor), account))

    async def link(self, visitor: Visitor, account: dict[str, Any]) -> httpx.Response:
        """All of it."""
        answer = await self.come_back(visitor, account)
        assert (answer.status_code, answer.headers.get("location")) == (303, self.path), answer.text
        return await visitor.submit(await visitor.get(self.path), f"{self.path}/confirm")

    async def mappings(self) -> list[tuple[UUID, str]]:
        async with self.world.db.transaction(self.world.org_id) as tx:
            rows = await tx.rows(
                "select user_account_id, channel_user_id from channel_mapping where connection_id = $1 and verified_at is not null",
                self.connection_id,
            )
        return [(row["user_account_id"], row["channel_user_id"]) for row in rows]


@pytest_asyncio.fixture
async def stage(
    request: pytest.FixtureRequest, strict: World, http: httpx.AsyncClient, app_state: State
) -> AsyncIterator[Stage]:
    client = VendorClient(Allowed.parse("127.0.0.1"))
    kind = getattr(request, "param", "github")
    if kind == "github":
        async with GitHubEmulator().serve() as github:
            side = GitHubStage(github, GitHubChannel(client))
            comments = CommentStage(side, GitHubLog(github))
            yield await _connected(strict, http, app_state, comments, github.login, GITHUB_PLACE)
    else:
        async with GitLabEmulator().serve() as gitlab:
            other = GitLabStage(gitlab, GitLabChannel(client))
            comments = CommentStage(other, GitLabLog(gitlab))
            yield await _connected(strict, http, app_state, comments, gitlab.login, GITLAB_PLACE)
    await client.close()


async def _connected(
    world: World, http: httpx.AsyncClient, state: State, comments: CommentStage, login: OAuthServer, place: str
) -> Stage:
    channel = cast("GitHubChannel | GitLabChannel", comments.channel)
    served = ServedChannels(
        vendors={channel.channel_type: channel}, allowed=Allowed.parse("127.0.0.1"), public_url="http://plane"
    )
    state.channels = served
    id = await comments.connect(world)
    change = ConnectionChange(config={"client_id": CLIENT_ID}, secrets={"client_secret": CLIENT_SECRET})
    shown = await connections.update_connection(world.db, world.admin.actor, id, change, None, channels=served)
    assert shown.callback_url == f"http://plane/access/channels/accounts/{id}/callback"
    login.redirect_uris.append(shown.callback_url)
    return Stage(world, http, comments, login, served, id, place)


def refusal(answer: httpx.Response) -> str:
    """The words of a page that says why nothing was linked, and where to go."""
    assert 'id="account-refused"' in answer.text, answer.text
    assert 'href="/access/channels"' in answer.text
    return html.unescape(re.sub(r"<[^>]+>", "", answer.text))


@pytest.mark.proves("D.842")
@pytest.mark.parametrize("stage", ["github", "gitlab"], indirect=True)
async def test_account_is_linked_by_logging_in_and_its_comment_decides_without_the_admin_who_vouched(
    stage: Stage, admin: asyncpg.Connection
) -> None:
    world = stage.world
    vic, bea = await world.person(Role.ADMIN, name="Vic"), await world.person(Role.APPROVER, name="Bea")
    await apply_policies(world.db, world.admin.actor, f"""
policies:
  - {{name: two, target: "*", effect: requires_approval, quorum: 2, approvers: {{roles: [approver, admin]}}, timeout: 1d,
     channels: [{{{stage.channel_type}: "{stage.place}"}}]}}
""")  # fmt: skip
    draft = MappingDraft(member_id=bea.member_id, external_user=str(BEA))
    vouched = await connections.map_member(world.db, vic.actor, stage.connection_id, draft)
    assert vouched.vouched
    plane = Plane(world, cast("InteractiveStage", stage.comments), stage.connection_id)
    _, (asked,) = await waiting(world, Deploying(), call("deploy", plan={"to": "production"}))
    await plane.send()

    async def approve_by_comment() -> None:
        card = (await stage.comments.messages())[0]
        await plane.take(await stage.comments.press("bea", card, "Approve"))

    await approve_by_comment()
    await decide(world, asked, by=vic)
    assert (await shown(world, asked.id)).votes_for == 1, (
        "Vic said whose account it is, and could have written that comment"
    )

    visitor = await Visitor.log_in(stage.http, world, bea)
    assert "An admin linked it" in (await visitor.get("/access/channels")).text
    address = await stage.leave(visitor)
    query = parse_qs(urlsplit(address).query)
    assert query["code_challenge_method"] == ["S256"]
    assert query["redirect_uri"] == stage.login.redirect_uris
    back = await visitor.get(await stage.log_in(address, stage.account("bea", BEA)))
    assert (back.status_code, back.headers["location"]) == (303, stage.path)
    assert stage.login.given_out
    assert not stage.login.tokens, "the token is given back once it has named the account"
    confirmation = await visitor.get(stage.path)
    assert f"as <strong><bdi>bea</bdi></strong>, number <code>{BEA}</code>" in confirmation.text
    assert not await has_proven(admin, world, bea), "nothing is proven before she confirms it"
    confirmed = await visitor.submit(confirmation, f"{stage.path}/confirm")
    assert (confirmed.status_code, confirmed.headers["location"]) == (303, "/access/channels")
    assert await has_proven(admin, world, bea)
    (mapping,) = (await connections.list_own_mappings(world.db, bea.actor, None, 10)).items
    assert (mapping.id, mapping.vouched, mapping.metadata["name"]) == (vouched.id, False, "bea")
    await leaves_no_secret(admin, stage, query["state"][0])

    assert (await shown(world, asked.id)).votes_for == 1, "nothing proved it when she wrote that comment"
    await approve_by_comment()
    assert (await shown(world, asked.id)).status is ApprovalStatus.APPROVED
    own = await visitor.get("/access/channels")
    assert "last used" in own.text
    assert "An admin linked it" not in own.text
    gone = await visitor.submit(own, f"/access/channels/{mapping.id}/unlink")
    assert gone.status_code == 303
    assert await stage.mappings() == []
    assert (await audit.verify(world.db, world.admin.actor)).whole


async def has_proven(admin: asyncpg.Connection, world: World, person: Person) -> bool:
    proven: bool = await admin.fetchval("select has_proven_channel($1, $2, 'infinity')", world.org_id, person.member_id)
    return proven


async def leaves_no_secret(admin: asyncpg.Connection, stage: Stage, state: str) -> None:
    """Neither the state nor the token is anywhere in the database."""
    tables = await admin.fetch("select tablename from pg_tables where schemaname = 'public'")
    for (table,) in tables:
        for row in await admin.fetch(f'select t::text from "{table}" t'):
            assert state not in row[0], table
            assert stage.login.given_out[-1] not in row[0], table


@pytest.mark.proves("D.842")
async def test_whoever_set_the_secrets_of_the_connection_still_counts_as_one_human(stage: Stage) -> None:
    world = stage.world
    bea = await world.person(Role.APPROVER, name="Bea")
    policy = """
policies:
  - {name: two, target: "*", effect: requires_approval, quorum: 2, approvers: {roles: [approver, admin]}, self_approval: true, timeout: 1d}
"""
    await apply_policies(world.db, world.admin.actor, policy)
    await stage.link(await Visitor.log_in(stage.http, world, bea), stage.account("bea", BEA))
    async with world.db.transaction(world.org_id) as tx:
        behind = await tx.value("select voters_of($1, $2, 'github', 'infinity')", world.org_id, bea.member_id)
    assert list(behind) == [bea.member_id, world.admin.member_id]


@pytest.mark.proves("D.465", "D.842")
async def test_an_account_at_the_server_of_a_sponsor_proves_nothing_against_them(stage: Stage) -> None:
    """They may have logged in there as anybody."""
    world = stage.world
    maria = await enrolled(stage.http, world, await added(world))
    await stage.link(await Visitor.log_in(stage.http, world, maria), stage.account("maria", BEA))
    asked = await asked_for(world, TWO)
    for person in (world.admin, maria):
        last = (await vote(stage.http, asked, person)).json()["approval"]
        assert (last["status"], last["votes_for"]) == ("pending", 1)


@pytest.mark.proves("D.842")
async def test_what_somebody_wrote_as_a_guest_is_theirs_after_linking(stage: Stage, admin: asyncpg.Connection) -> None:
    world = stage.world
    bea = await world.person(Role.MEMBER, name="Bea")
    as_guest = await replace(world, connection=replace(world.connection, id=stage.connection_id)).say("Hello", str(BEA))
    assert as_guest.user_account_id != bea.member_id
    await stage.link(await Visitor.log_in(stage.http, world, bea), stage.account("bea", BEA))
    shown = await stage.http.get(f"/v1/sessions/{as_guest.session_id}", headers=bea.headers)
    assert shown.json()["user_account_id"] == str(bea.member_id)
    causes = await admin.fetchval("select causes from call_causes($1, $2, 1, '{}')", world.org_id, as_guest.job_id)
    assert bea.member_id in causes
    assert as_guest.user_account_id not in causes


@pytest.mark.proves("D.842")
async def test_whoever_vouched_for_an_account_is_a_cause_of_what_it_asks_for_until_its_member_proves_it(
    stage: Stage, admin: asyncpg.Connection
) -> None:
    world = stage.world
    vic = await world.person(Role.ADMIN, name="Vic")
    await admin.execute(
        "update channel_connection set agent_id = $2 where id = $1", stage.connection_id, world.agent.id
    )
    plane = Plane(world, cast("InteractiveStage", stage.comments), stage.connection_id)

    async def causes_of_a_comment(name: str, *, proves: bool) -> list[UUID]:
        person, number = await world.person(Role.MEMBER, name=name.title()), PEOPLE[name]
        draft = MappingDraft(member_id=person.member_id, external_user=str(number))
        await connections.map_member(world.db, vic.actor, stage.connection_id, draft)
        if proves:
            await stage.link(await Visitor.log_in(stage.http, world, person), stage.account(name, number))
        await plane.take(await stage.comments.write(name, "deploy it"))
        causes: list[UUID] = await admin.fetchval(
            "select c.causes from message m join session s on s.id = m.session_id join job j on j.session_id = s.id"
            " cross join call_causes($1, j.id, 1, '{}') c where m.author_id = $2 limit 1",
            world.org_id, person.member_id,
        )  # fmt: skip
        assert {person.member_id, world.admin.member_id} <= set(causes), "and whoever set the connection up"
        return causes

    assert vic.member_id in await causes_of_a_comment("bea", proves=False)
    assert vic.member_id not in await causes_of_a_comment("mia", proves=True)


@pytest.mark.proves("D.842")
async def test_connection_without_an_application_offers_no_login(stage: Stage) -> None:
    world = stage.world
    visitor = await Visitor.log_in(stage.http, world)
    page = await visitor.get("/access/channels")
    assert "Link GitHub account" in page.text
    half = ConnectionChange(config={"client_id": None})
    with pytest.raises(InvalidInput, match="client_id` is missing"):
        await connections.update_connection(
            world.db, world.admin.actor, stage.connection_id, half, None, channels=stage.served
        )
    await connections.update_connection(
        world.db, world.admin.actor, stage.connection_id, ConnectionChange(enabled=False), None, channels=stage.served
    )
    assert "Link GitHub account" not in (await visitor.get("/access/channels")).text
    refused = await visitor.submit(page, stage.path)
    assert (refused.status_code, "Nobody can link an account" in refusal(refused)) == (409, True)


@pytest.mark.proves("D.843")
async def test_answer_counts_once_and_only_in_the_session_that_began(stage: Stage, admin: asyncpg.Connection) -> None:
    world, clock = stage.world, await RunningClock.install(admin)
    bea, eve = await world.person(Role.APPROVER, name="Bea"), await world.person(Role.APPROVER, name="Eve")
    victim, second = [await Visitor.log_in(stage.http, world, bea) for _ in range(2)]
    attacker = await Visitor.log_in(stage.http, world, eve)
    lure = await stage.log_in(await stage.leave(attacker), stage.account("eve", 666))
    begun = await stage.leave(victim)
    for visitor in (victim, second):
        refused = await visitor.get(lure)
        assert refused.status_code == 403
        assert "You did not begin this in this browser session" in refusal(refused)
    assert (await stage.http.get(lure)).status_code == 401, "nor without any session"
    stolen = parse_qs(urlsplit(lure).query)["code"][0]
    own_state = parse_qs(urlsplit(begun).query)["state"][0]
    injected = await victim.get(f"{stage.path}/callback?state={own_state}&code={stolen}")
    assert (injected.status_code, "does not accept the code" in refusal(injected)) == (422, True), (
        "PKCE binds a code to who began"
    )
    assert (await victim.get(stage.path)).status_code == 404, "nothing waits to be confirmed"

    back = await stage.log_in(await stage.leave(victim), stage.account("bea", BEA))
    assert (await second.get(back)).status_code == 403
    assert (await victim.get(back)).status_code == 303
    assert (await victim.get(back)).status_code == 403, "a state is used once"
    confirmation = await victim.get(stage.path)
    assert (await second.get(stage.path)).status_code == 404
    forged = await victim.send(f"{stage.path}/confirm", {"form_token": "0" * 64})
    assert forged.status_code == 403
    other = await victim.submit(confirmation, f"{stage.path}/confirm", link_id=str(UUID(int=7)))
    assert other.status_code == 404, "what is confirmed is what was shown"
    await clock.advance(timedelta(minutes=11))
    late = await victim.submit(confirmation, f"{stage.path}/confirm")
    assert late.status_code == 404
    old = await stage.log_in(await stage.leave(victim), stage.account("bea", BEA))
    await clock.advance(timedelta(minutes=11))
    assert (await victim.get(old)).status_code == 403
    assert await stage.mappings() == []


@pytest.mark.proves("D.843")
@pytest.mark.parametrize("stage", ["github", "gitlab"], indirect=True)
async def test_what_the_vendor_refuses_links_nothing_and_says_what_to_do(stage: Stage) -> None:
    world = stage.world
    bea, cal = await world.person(Role.APPROVER, name="Bea"), await world.person(Role.APPROVER, name="Cal")
    visitor = await Visitor.log_in(stage.http, world, bea)
    await stage.link(await Visitor.log_in(stage.http, world, cal), stage.account("cal", 77))
    mapped = await stage.mappings()

    denied = await visitor.get(await stage.log_in(await stage.leave(visitor), stage.account("bea", BEA), agrees=False))
    assert (denied.status_code, "You did not agree at the vendor." in refusal(denied)) == (409, True)
    taken = await stage.come_back(visitor, stage.account("cal", 77))
    assert (taken.status_code, "linked to another member" in refusal(taken)) == (409, True)
    machine = {"type": "Bot"} if stage.channel_type == "github" else {"bot": True}
    bot = await stage.come_back(visitor, stage.account("robot", 78, **machine))
    assert (bot.status_code, "the account of a program" in refusal(bot)) == (409, True)
    back = await stage.log_in(await stage.leave(visitor), stage.account("bea", BEA))
    stage.login.codes.clear()
    stale = await visitor.get(back)
    assert (stale.status_code, "does not accept the code" in refusal(stale)) == (422, True)
    stage.login.faults.add(VendorFault(status=503))
    away = await stage.come_back(visitor, stage.account("bea", BEA))
    assert (away.status_code, "answered HTTP 503" in refusal(away)) == (424, True)
    await set_secret(stage, "wrong-secret-of-the-application")
    wrong = await stage.come_back(visitor, stage.account("bea", BEA))
    assert (wrong.status_code, "refuses this connection" in refusal(wrong)) == (424, True)
    assert "wrong-secret" not in wrong.text
    await set_secret(stage, CLIENT_SECRET)
    back = await stage.log_in(await stage.leave(visitor), stage.account("<b>bea</b>", BEA))
    assert (await visitor.get(back)).status_code == 303
    page = await visitor.get(stage.path)
    assert "<b>bea</b>" not in page.text
    refused = await visitor.submit(page, f"{stage.path}/refuse")
    assert refused.status_code == 303
    assert (await visitor.get(stage.path)).status_code == 404
    assert await stage.mappings() == mapped
    assert not stage.login.tokens


async def set_secret(stage: Stage, secret: str) -> None:
    world = stage.world
    async with world.db.transaction(world.org_id) as tx:
        row = await tenancy_store.lock_connection(tx, stage.connection_id)
        assert row is not None
        values = tenancy_store.open_secret(world.db.vault, tx.org, row.id, row.sealed) | {"client_secret": secret}
        sealed = await tenancy_store.seal_secret(tx, world.db, row.id, values)
        await tx.rows("update channel_connection set sealed = $2 where id = $1", row.id, sealed)
