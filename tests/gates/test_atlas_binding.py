"""Which sessions are bound to which versions of which atlases: at every door, whoever publishes or retires meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentChange, AgentDraft, ModelConfig
from cortex_plane.gates.verbs import atlases, session_lifecycle
from cortex_plane.jobs.model.jobs import Cancellation, JobDraft
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import Conflict, Forbidden, NotFound
from cortex_plane.kernel.globs import Glob
from cortex_plane.kernel.ids import new_id
from cortex_plane.sessions.model.sessions import MessageDraft, SessionDraft, SessionKind, Termination
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.atlases import ATLAS, govern, manifest, publish, service, steward
from tests.fixtures.macs import sign_mappings
from tests.fixtures.people import World

OTHER = "com.acme.billing"


async def bound(world: World, session_id: UUID) -> list[tuple[str, str]]:
    found = await sessions.get_session(world.db, world.admin.actor, session_id)
    return [(each.atlas_id, each.version) for each in found.atlases]


async def opens(world: World) -> UUID:
    return (await session_lifecycle.create(world.db, world.admin.actor, SessionDraft(agent="deployer"))).id


async def opens_elsewhere(world: World) -> UUID:
    draft = SessionDraft(agent="deployer", kind=SessionKind.EXTERNAL)
    return (await session_lifecycle.create(world.db, world.admin.actor, draft)).id


async def submits(world: World) -> UUID:
    return (await jobs.submit(world.db, world.admin.actor, JobDraft(agent="deployer"))).session_id


async def says(world: World) -> UUID:
    return (await world.say()).session_id


DOORS: dict[str, Callable[[World], Awaitable[UUID]]] = {
    "session": opens, "external session": opens_elsewhere, "job": submits, "message": says,
}  # fmt: skip


@pytest.mark.proves("D.325")
@pytest.mark.parametrize("door", DOORS)
async def test_every_door_binds_to_the_newest_version_that_holds(world: World, door: str) -> None:
    for version in ("1.0.0", "1.1.0", "1.0.5"):
        await publish(world, manifest(version))
    await govern(world)
    await atlases.retire_atlas(world.db, world.admin.actor, ATLAS, "1.0.5")
    session = await DOORS[door](world)
    assert await bound(world, session) == [(ATLAS, "1.1.0")], "what was published last, without what was retired"


@pytest.mark.proves("D.325")
async def test_what_a_session_is_bound_to_stays(world: World) -> None:
    first = await publish(world)
    await govern(world)
    session = await opens(world)
    (before,) = (await sessions.get_session(world.db, world.admin.actor, session)).atlases
    assert before.digest == first.version.digest
    await publish(world, manifest("2.0.0"))
    await atlases.retire_atlas(world.db, world.admin.actor, ATLAS, "1.0.0")
    job = await jobs.submit(world.db, world.admin.actor, JobDraft(agent="deployer", session_id=session))
    await sessions.post_message(world.db, world.admin.actor, session, MessageDraft(text="Hello"))
    await steering.cancel(world.db, world.admin.actor, job.id, Cancellation())
    await jobs.resubmit(world.db, world.admin.actor, job.id)
    assert (await sessions.get_session(world.db, world.admin.actor, session)).atlases == [before]
    assert await bound(world, await opens(world)) == [(ATLAS, "2.0.0")]


@pytest.mark.proves("D.325")
async def test_a_session_without_atlases_is_bound_with_its_next_job_or_message(world: World) -> None:
    by_job, by_message = await opens(world), await opens(world)
    said = await says(world)
    assert [await bound(world, each) for each in (by_job, by_message, said)] == [[], [], []]
    await publish(world)
    await govern(world)
    job = await jobs.submit(world.db, world.admin.actor, JobDraft(agent="deployer", session_id=by_job))
    await sessions.post_message(world.db, world.admin.actor, by_message, MessageDraft(text="Hello"))
    assert await bound(world, by_job) == await bound(world, by_message) == [(ATLAS, "1.0.0")]
    await says(world)
    assert await bound(world, said) == [], "the job that is under way reads it, as it began"
    later = await opens(world)
    await steering.cancel(world.db, world.admin.actor, job.id, Cancellation())
    again = await jobs.resubmit(world.db, world.admin.actor, job.id)
    assert again.session_id == by_job
    assert await bound(world, later) == [(ATLAS, "1.0.0")]


@pytest.mark.proves("D.326")
@pytest.mark.parametrize("door", DOORS)
async def test_where_no_version_holds_nothing_begins(world: World, admin: asyncpg.Connection, door: str) -> None:
    await publish(world)
    await govern(world)
    retired = await atlases.retire_atlas(world.db, world.admin.actor, ATLAS, "1.0.0")
    assert (retired.holds, retired.agents) == (None, ["deployer"])
    with pytest.raises(Conflict) as refused:
        await DOORS[door](world)
    assert (refused.value.code, ATLAS in refused.value.message) == ("atlas_missing", True)
    assert "cortex atlas publish" in refused.value.hint
    for table in ("session", "job", "message", "session_atlas"):
        assert await admin.fetchval(f"select count(*) from {table}") == 0, table


@pytest.mark.proves("D.326")
async def test_a_message_to_a_bound_session_goes_on_where_none_holds_any_more(world: World) -> None:
    await publish(world)
    await govern(world)
    session = await opens(world)
    await atlases.retire_atlas(world.db, world.admin.actor, ATLAS, "1.0.0")
    await sessions.post_message(world.db, world.admin.actor, session, MessageDraft(text="Hello"))
    assert await bound(world, session) == [(ATLAS, "1.0.0")]


@pytest.mark.proves("D.327")
async def test_an_agent_names_only_atlases_of_which_a_version_holds(world: World, other: World) -> None:
    await publish(other)
    for names in ([ATLAS], [ATLAS, OTHER]):
        with pytest.raises(Conflict) as refused:
            await govern(world, *names)
        assert refused.value.code == "atlas_missing"
    draft = AgentDraft(
        name="Second", slug="second", role="r", team="main", model_config=ModelConfig(model="scripted"),
        skill_config={"atlases": [ATLAS]},
    )  # fmt: skip
    with pytest.raises(Conflict):
        await agents.create_agent(world.db, world.admin.actor, draft)
    await publish(world)
    made = await agents.create_agent(world.db, world.admin.actor, draft)
    assert made.skill_config["atlases"] == [ATLAS]
    await atlases.retire_atlas(world.db, world.admin.actor, ATLAS, "1.0.0")
    renamed = await agents.update_agent(world.db, world.admin.actor, "second", AgentChange(name="2nd"), None)
    assert renamed.name == "2nd", "what is not about atlases can still be changed"


@pytest.mark.proves("D.327")
@pytest.mark.parametrize(
    "given", ["x", [1], ["Not An Id"], [ATLAS, ATLAS], [f"a{n}" for n in range(21)], [{}], ["a/b"]]
)
async def test_what_is_no_list_of_atlases_is_refused(world: World, given: object) -> None:
    with pytest.raises(ValueError, match="atlases must be a list"):
        AgentChange(skill_config={"atlases": given})


@pytest.mark.proves("D.328")
async def test_whoever_opens_or_submits_may_put_atlases_around_it(world: World) -> None:
    await publish(world)
    await publish(world, manifest(atlas_id=OTHER))
    actor = world.service.actor
    session = await session_lifecycle.create(world.db, actor, SessionDraft(agent="deployer", atlases=[ATLAS, OTHER]))
    assert await bound(world, session.id) == [(OTHER, "1.0.0"), (ATLAS, "1.0.0")]
    job = await jobs.submit(world.db, actor, JobDraft(agent="deployer", atlases=[OTHER]))
    assert await bound(world, job.session_id) == [(OTHER, "1.0.0")]
    again = JobDraft(agent="deployer", session_id=job.session_id, atlases=[OTHER])
    await jobs.submit(world.db, actor, again)
    with pytest.raises(NotFound) as unknown:
        await session_lifecycle.create(world.db, actor, SessionDraft(agent="deployer", atlases=["com.acme.none"]))
    assert unknown.value.code == "atlas_not_found"
    await atlases.retire_atlas(world.db, world.admin.actor, OTHER, "1.0.0")
    with pytest.raises(Conflict) as retired:
        await jobs.submit(world.db, actor, JobDraft(agent="deployer", atlases=[OTHER]))
    assert retired.value.code == "atlas_missing"


@pytest.mark.proves("D.328")
async def test_only_stewards_add_another_one_to_what_is_governed(world: World) -> None:
    """Several are merged: one that allows everything would allow what the others leave out."""
    await publish(world)
    await publish(world, manifest(atlas_id=OTHER))
    await govern(world)
    actor = world.service.actor
    with pytest.raises(Forbidden) as refused:
        await session_lifecycle.create(world.db, actor, SessionDraft(agent="deployer", atlases=[OTHER]))
    assert refused.value.code == "atlas_addition_refused"
    job = await jobs.submit(world.db, actor, JobDraft(agent="deployer", atlases=[ATLAS]))
    more = JobDraft(agent="deployer", session_id=job.session_id, atlases=[OTHER])
    with pytest.raises(Forbidden):
        await jobs.submit(world.db, actor, more)
    await govern(world, OTHER)
    with pytest.raises(Forbidden):  # bound to what the agent named before; it names another one now
        await jobs.submit(world.db, actor, JobDraft(agent="deployer", atlases=[ATLAS]))
    stella = await world.person(Role.STEWARD, name="Stella")
    session = await session_lifecycle.create(world.db, stella.actor, SessionDraft(agent="deployer", atlases=[ATLAS]))
    assert await bound(world, session.id) == [(OTHER, "1.0.0"), (ATLAS, "1.0.0")]


@pytest.mark.proves("D.328")
async def test_what_a_caller_chose_is_not_merged_with_what_the_agent_names_later(
    world: World, admin: asyncpg.Connection
) -> None:
    """The same as in the other order: a permissive atlas would allow what the agent's own leave out."""
    await publish(world)
    await publish(world, manifest(atlas_id=OTHER))
    mallory = await world.person(Role.MEMBER, name="Mallory")
    await _known_as(world, admin, "u-7")
    talk = await world.say(external_user_id="u-7")
    chosen = JobDraft(agent="deployer", atlases=[OTHER])
    job = await jobs.submit(world.db, mallory.actor, chosen)
    in_talk = await jobs.submit(world.db, mallory.actor, replace(chosen, session_id=talk.session_id))
    for each in (talk.job_id, job.id, in_talk.id):
        await steering.cancel(world.db, world.admin.actor, each, Cancellation())
    await govern(world)
    before = await _everything(admin)
    more = JobDraft(agent="deployer", session_id=job.session_id)
    for attempt in (
        lambda: jobs.submit(world.db, mallory.actor, more),
        lambda: jobs.submit(world.db, world.admin.actor, replace(more, atlases=[OTHER])),
        lambda: jobs.resubmit(world.db, world.admin.actor, job.id),
        lambda: sessions.post_message(world.db, mallory.actor, talk.session_id, MessageDraft(text="Hello")),
        lambda: world.say(external_user_id="u-7"),
    ):
        with pytest.raises(Forbidden) as refused:
            await attempt()
        assert (refused.value.code, OTHER in refused.value.message) == ("atlas_addition_refused", True)
        assert "new session" in refused.value.hint
    assert await _everything(admin) == before, "nothing is half written"
    # Ended, it makes way for one that is governed as its agent says.
    await session_lifecycle.terminate(world.db, world.admin.actor, talk.session_id, Termination())
    fresh = await world.say(external_user_id="u-7")
    assert await bound(world, fresh.session_id) == [(ATLAS, "1.0.0")]
    # An agent that names it too may go on, and so may what a steward chose.
    await govern(world, ATLAS, OTHER)
    await jobs.submit(world.db, mallory.actor, more)
    assert await bound(world, job.session_id) == [(OTHER, "1.0.0"), (ATLAS, "1.0.0")]


@pytest.mark.proves("D.328")
async def test_what_a_steward_put_around_a_session_stays_beside_what_the_agent_names_later(world: World) -> None:
    await publish(world)
    await publish(world, manifest(atlas_id=OTHER))
    stella = await world.person(Role.STEWARD, name="Stella")
    session = await session_lifecycle.create(world.db, stella.actor, SessionDraft(agent="deployer", atlases=[OTHER]))
    await govern(world)
    await jobs.submit(world.db, world.admin.actor, JobDraft(agent="deployer", session_id=session.id))
    assert await bound(world, session.id) == [(OTHER, "1.0.0"), (ATLAS, "1.0.0")]


async def _everything(admin: asyncpg.Connection) -> list[int]:
    tables = ("session", "job", "message", "session_atlas", "audit_entry", "event")
    return [await admin.fetchval(f"select count(*) from {table}") for table in tables]


@pytest.mark.proves("D.329")
async def test_sessions_that_open_while_versions_come_and_go_are_bound_to_one_that_held(
    world: World, admin: asyncpg.Connection
) -> None:
    """Each is bound to one version, whose digest it has; and to nothing that was retired before it began."""
    await publish(world)
    await govern(world)
    retired: list[tuple[str, int]] = []
    order = [0]

    async def churn() -> None:
        for number in range(2, 9):
            await publish(world, manifest(f"{number}.0.0"))
            await atlases.retire_atlas(world.db, world.admin.actor, ATLAS, f"{number - 1}.0.0")
            order[0] += 1
            retired.append((f"{number - 1}.0.0", order[0]))

    async def open_many(door: Callable[[World], Awaitable[UUID]]) -> list[tuple[int, UUID]]:
        made = []
        for _ in range(6):
            began = order[0]
            made.append((began, await door(world)))
        return made

    async def talk() -> list[tuple[int, UUID]]:
        made = []
        for number in range(6):
            began = order[0]
            made.append((began, (await world.say(external_user_id=f"u-{number}")).session_id))
        return made

    _, *rest = await asyncio.gather(churn(), open_many(opens), open_many(submits), open_many(opens_elsewhere), talk())
    digests = dict(await admin.fetch("select version, digest from atlas_version"))
    for began, session in [each for made in rest for each in made]:
        (pin,) = (await sessions.get_session(world.db, world.admin.actor, session)).atlases
        assert pin.digest == digests[pin.version]
        assert all(pin.version != version for version, at in retired if at <= began), (pin, began)


@pytest.mark.proves("D.329")
async def test_two_jobs_at_once_bind_a_session_once(world: World) -> None:
    session = await opens(world)
    names = [f"com.acme.a{number}" for number in range(4)]
    for name in names:
        await publish(world, manifest(atlas_id=name))
    await govern(world, *reversed(names))
    await asyncio.gather(
        *(jobs.submit(world.db, world.admin.actor, JobDraft(agent="deployer", session_id=session)) for _ in range(6))
    )
    assert await bound(world, session) == [(name, "1.0.0") for name in names]


# Who may work under one ----------------------------------------------------------------------------------------


@pytest.mark.proves("D.330")
async def test_guests_are_kept_out_where_the_steward_says_so(world: World, admin: asyncpg.Connection) -> None:
    await publish(world, manifest(steward=steward(access={"type": "authenticated"})))
    await govern(world)
    with pytest.raises(Forbidden) as refused:
        await world.say()
    assert (refused.value.code, "guests" in refused.value.message) == ("atlas_access_refused", True)
    assert await admin.fetchval("select count(*) from session") == 0
    for door in (opens, opens_elsewhere, submits):
        assert await bound(world, await door(world)) == [(ATLAS, "1.0.0")], door


@pytest.mark.proves("D.330")
async def test_a_guest_who_became_a_member_is_let_in_and_the_other_way_round(
    world: World, admin: asyncpg.Connection
) -> None:
    session = (await world.say()).session_id
    job = await admin.fetchval("select id from job where session_id = $1", session)
    await steering.cancel(world.db, world.admin.actor, job, Cancellation())
    await publish(world, manifest(steward=steward(access={"type": "authenticated"})))
    await govern(world)
    with pytest.raises(Forbidden):
        await world.say("again")
    await admin.execute("update user_account set roles = '{member}' where roles = '{guest}'")
    await world.say("once more")
    assert await bound(world, session) == [(ATLAS, "1.0.0")]
    await admin.execute("update user_account set roles = '{guest}' where roles = '{member}'")
    with pytest.raises(Forbidden):
        await world.say("and again")


async def _known_as(world: World, admin: asyncpg.Connection, name: str) -> UUID:
    """The newest member has this name on the org's connection."""
    member: UUID = await admin.fetchval(
        "insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id, verified_at)"
        " select $1, $2, $3, u.id, 'web', $4, plane_now() from user_account u where u.org_id = $1"
        " order by u.created_at desc limit 1 returning user_account_id",
        world.org_id, new_id(), world.connection.id, name,
    )  # fmt: skip
    await sign_mappings(world.db, world.org_id)
    return member


@pytest.mark.proves("D.331", "S5.24")
async def test_only_keys_that_the_steward_names_may_be_used(world: World, admin: asyncpg.Connection) -> None:
    await publish(world, manifest(steward=steward(access={"type": "authenticated", "api_keys": ["sk-*-prod"]})))
    await govern(world)
    good, bad = await service(world, "sk-shop-prod"), await service(world, "sk-shop-test")
    draft = SessionDraft(agent="deployer")
    external = SessionDraft(agent="deployer", kind=SessionKind.EXTERNAL)
    session = await session_lifecycle.create(world.db, good.actor, draft)
    await session_lifecycle.create(world.db, good.actor, external)
    job = await jobs.submit(world.db, good.actor, JobDraft(agent="deployer", session_id=session.id))
    await sessions.post_message(world.db, good.actor, session.id, MessageDraft(text="Hello"))
    before = await admin.fetchval("select count(*) from job")
    tries: list[Awaitable[object]] = [
        session_lifecycle.create(world.db, bad.actor, draft),
        session_lifecycle.create(world.db, bad.actor, external),
        jobs.submit(world.db, bad.actor, JobDraft(agent="deployer")),
        # Whoever sees the session, with a key that is not among them.
        jobs.submit(world.db, world.admin.actor, JobDraft(agent="deployer", session_id=session.id)),
        sessions.post_message(world.db, world.admin.actor, session.id, MessageDraft(text="Hello")),
    ]
    for each in tries:
        with pytest.raises(Forbidden, match="is none of them") as refused:
            await each
        assert refused.value.code == "atlas_access_refused"
    await steering.cancel(world.db, world.admin.actor, job.id, Cancellation())
    with pytest.raises(Forbidden):
        await jobs.resubmit(world.db, world.admin.actor, job.id)
    with pytest.raises(Forbidden, match="guests"):
        await world.say()
    assert (await world.person(Role.MEMBER)).member_id == await _known_as(world, admin, "u-7")
    with pytest.raises(Forbidden, match="without one"):  # the key of the channel's program is not the person's
        await world.say(external_user_id="u-7")
    assert await admin.fetchval("select count(*) from job") == before


@pytest.mark.proves("D.331")
@pytest.mark.parametrize(
    ("glob", "name", "fits"),
    [
        ("*", "anything", True),
        ("sk-acme-*", "sk-acme-", True),
        ("sk-acme-*", "sk-acme", False),
        ("sk_a", "sk-a", False),
        ("sk%", "sk-a", False),
        ("50%*", "50%off", True),
        (r"a\*", r"a\b", True),
        (r"a\*", "ab", False),
        ("SK-*", "sk-a", False),
        ("a*b*c", "a--b--c", True),
        ("a*b*c", "a--c--b", False),
    ],
)  # fmt: skip
async def test_a_name_fits_as_globs_fit_everywhere(
    world: World, admin: asyncpg.Connection, glob: str, name: str, fits: bool
) -> None:
    assert Glob.of(glob).matches(name) is fits
    assert await admin.fetchval("select glob_matches($1, $2)", glob, name) is fits


@pytest.mark.proves("D.331")
async def test_who_comes_without_a_key_is_told_so(world: World) -> None:
    """A browser's cookie is no key, and a platform's key is no key of this org."""
    await publish(world, manifest(steward=steward(access={"type": "authenticated", "api_keys": ["*"]})))
    await govern(world)
    in_a_browser = replace(world.admin.actor, key_id=new_id())
    for attempt in (
        session_lifecycle.create(world.db, in_a_browser, SessionDraft(agent="deployer")),
        jobs.submit(world.db, in_a_browser, JobDraft(agent="deployer")),
    ):
        with pytest.raises(Forbidden, match="without one"):
            await attempt
    session = await opens(world)
    with pytest.raises(Forbidden, match="without one"):
        await sessions.post_message(world.db, in_a_browser, session, MessageDraft(text="Hello"))
