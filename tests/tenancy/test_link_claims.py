"""A code that was typed on a channel links it only once its member has confirmed who typed it."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import httpx
import pytest

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import Conflict, InvalidInput, NotFound
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.identities import ClaimDraft, LinkDraft, Mapping
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import links
from tests.fixtures.clock import Clock
from tests.fixtures.people import Person, World
from tests.fixtures.vendors import vendor_stage


async def claim(world: World, person: Person, sender: str = "4711", name: str = "@ada") -> Mapping:
    """Somebody types a new code of the person, as the connection's channel sees it."""
    code = await links.issue_link_code(world.db, person.actor)
    draft = ClaimDraft(code=code.code, external_user_id=sender, display_name=name)
    return await links.claim_link(world.db, world.service.actor, world.connection.id, draft)


async def is_theirs(world: World, sender: str = "4711") -> bool:
    async with world.db.transaction(world.org_id) as tx:
        return await tenancy_store.verified_mapping(tx, world.connection.id, sender) is not None


@pytest.mark.proves("D.828")
async def test_a_code_links_nothing_before_its_member_confirms_who_typed_it(
    http: httpx.AsyncClient, world: World
) -> None:
    bea = await world.person(Role.APPROVER, name="Bea")
    assert (await claim(world, bea)).verified_at is None
    assert not await is_theirs(world)
    (waiting,) = (await http.get("/v1/me/link-claims", headers=bea.headers)).json()["items"]
    assert (waiting["name"], waiting["channel_user_id"], waiting["connection"]) == ("@ada", "4711", "site")
    path = f"/v1/me/link-claims/{waiting['id']}"
    others = await http.post(f"{path}/confirm", headers=world.admin.headers)
    assert others.json()["code"] == "link_claim_not_found", "it is Bea's"
    confirmed = await http.post(f"{path}/confirm", headers=bea.headers)
    assert confirmed.json()["verified_at"] is not None
    assert await is_theirs(world)
    assert (await http.get("/v1/me/link-claims", headers=bea.headers)).json()["items"] == []
    entries = await audit.list_entries(world.db, world.admin.actor, None, 0, 1000)
    assert [e.action for e in entries][-2:] == ["identity_claimed", "identity_linked"]


async def test_a_program_redeems_no_code_over_a_connection_of_the_planes_own(world: World) -> None:
    """It could have read the code where others typed it: on these the member confirms who did."""
    async with vendor_stage() as stage:
        connection_id = await stage.connect_id(world)
    code = await links.issue_link_code(world.db, world.admin.actor)
    draft = LinkDraft(code=code.code, external_user_id="4711")
    with pytest.raises(Conflict) as refusal:
        await links.redeem_link_code(world.db, world.service.actor, connection_id, draft)
    assert refusal.value.code == "connection_served"


async def test_a_code_that_its_sender_sends_again_leads_to_the_same_claim(world: World) -> None:
    """An event whose answer did not arrive is handled once more."""
    code = await links.issue_link_code(world.db, world.admin.actor)
    draft = ClaimDraft(code=code.code, external_user_id="4711", display_name="@ada")
    first, again = [await links.claim_link(world.db, world.service.actor, world.connection.id, draft) for _ in range(2)]
    assert first.id == again.id
    other = ClaimDraft(code=code.code, external_user_id="666", display_name="@mallory")
    with pytest.raises(InvalidInput):
        await links.claim_link(world.db, world.service.actor, world.connection.id, other)


async def test_codes_are_sent_only_where_nobody_else_reads_them(world: World) -> None:
    async with vendor_stage() as private, vendor_stage("github") as public:
        connection_id = await private.connect_id(world)
        await public.connect(world)
    assert [each.id for each in await links.list_linkable(world.db, world.admin.actor)] == [connection_id]


async def test_a_refused_claim_links_nothing(http: httpx.AsyncClient, world: World) -> None:
    mapping = await claim(world, world.admin, name="@mallory")
    refused = await http.post(f"/v1/me/link-claims/{mapping.id}/refuse", headers=world.admin.headers)
    assert refused.status_code == 204
    with pytest.raises(NotFound):
        await links.confirm_link(world.db, world.admin.actor, mapping.id)
    assert not await is_theirs(world)


async def test_a_claim_waits_for_an_hour(db: Database, world: World, admin: asyncpg.Connection) -> None:
    mapping = await claim(world, world.admin)
    clock = await Clock.install(admin, await admin.fetchval("select plane_now()"))
    await clock.advance(timedelta(minutes=61))
    assert await links.list_own_claims(db, world.admin.actor) == []
    with pytest.raises(NotFound):
        await links.confirm_link(db, world.admin.actor, mapping.id)
    again = await claim(world, world.admin, name="@ada2")
    assert again.id == mapping.id
    assert [claim.name for claim in await links.list_own_claims(db, world.admin.actor)] == ["@ada2"]


async def test_a_sender_who_is_somebody_elses_cannot_be_claimed(world: World) -> None:
    bea = await world.person(Role.APPROVER, name="Bea")
    mapping = await claim(world, bea)
    await links.confirm_link(world.db, bea.actor, mapping.id)
    with pytest.raises(Conflict) as taken:
        await claim(world, world.admin)
    assert taken.value.code == "identity_taken"
    assert (await claim(world, bea)).verified_at is not None, "their own again changes nothing"


async def test_wrong_codes_are_counted(world: World) -> None:
    draft = ClaimDraft(code="00000-00000", external_user_id="4711", display_name="@guess")
    for _ in range(5):
        with pytest.raises(InvalidInput):
            await links.claim_link(world.db, world.service.actor, world.connection.id, draft)
    with pytest.raises(Exception, match="typed 5 wrong codes"):
        await links.claim_link(world.db, world.service.actor, world.connection.id, draft)


@pytest.mark.proves("D.828")
async def test_what_a_guest_wrote_is_the_members_after_linking(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    bea = await world.person(Role.MEMBER, name="Bea")
    as_guest = await world.say("Hello", "4711")
    assert (await http.get(f"/v1/sessions/{as_guest.session_id}", headers=bea.headers)).status_code == 404
    await links.confirm_link(world.db, bea.actor, (await claim(world, bea)).id)
    shown = await http.get(f"/v1/sessions/{as_guest.session_id}", headers=bea.headers)
    assert shown.json()["user_account_id"] == str(bea.member_id)
    later = await world.say("It is me", "4711")
    assert (later.session_id, later.user_account_id) == (as_guest.session_id, bea.member_id)
    causes, caused = await admin.fetchrow(
        "select causes, caused::text from call_causes($1, $2, 1, '{}')", world.org_id, as_guest.job_id
    )
    assert bea.member_id in causes, caused
    assert as_guest.user_account_id not in causes


async def test_a_guests_conversation_stays_beside_that_of_the_member(http: httpx.AsyncClient, world: World) -> None:
    bea = await world.person(Role.MEMBER, name="Bea")
    await links.confirm_link(world.db, bea.actor, (await claim(world, bea, "42")).id)
    own = await world.say("Hello", "42")
    as_guest = await world.say("Hello", "4711")
    await links.confirm_link(world.db, bea.actor, (await claim(world, bea)).id)
    assert (await http.get(f"/v1/sessions/{as_guest.session_id}", headers=bea.headers)).status_code == 200
    assert (await world.say("It is me", "4711")).session_id == own.session_id
