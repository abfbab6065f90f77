"""Steps of code that are settled like calls: written before and after, and never run twice blindly."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest
from structlog.testing import capture_logs

from cortex_plane.agents.model.tools import DidNotHappen, Happened, ToolError
from cortex_plane.approvals.verbs import settlements
from cortex_plane.jobs.model.effects import Answer, Question, Verdict
from cortex_plane.jobs.model.jobs import Hold, JobStatus, Reason, Severity
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import StepFailed
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.code.steps import warn_undeclared
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from tests.fixtures.coded import Code, coded, keys_of, make_coded
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import Died, died, ended, submit, until, whole, working
from tests.worker.test_preflight import findings


class Floor:
    """Where parcels are packed. The first time its worker dies behind the act, unless told otherwise."""

    def __init__(self, *troubles: BaseException | None) -> None:
        self.packed: list[str] = []
        self.keys: set[str] = set()
        self.troubles = list(troubles or (Died(),))

    def pack(self, what: str) -> str:
        self.packed.append(what)
        trouble = self.troubles.pop(0) if self.troubles else None
        if trouble is not None:
            raise trouble
        return f"packed {what}"

    async def pack_with_key(self, what: str, ctx: ToolContext) -> str:
        self.keys.add(ctx.idempotency_key)
        return self.pack(what)

    def agent(self, **declared: Any) -> Code:
        async def run(ctx: Context) -> list[Any]:
            before = await ctx.step("before", lambda: 1, repeatable=True)
            done = await ctx.step("pack", self.pack, "lamp", timeout=0.2, **declared)
            return [before, done, await ctx.step("after", lambda: 2, repeatable=True)]

        return run


async def orphaned(world: World, app: App) -> UUID:
    """A job whose worker died in a step."""
    id = await submit(world, await make_coded(world))
    await died(world.db, app)
    return id


async def question_of(world: World, id: UUID) -> Question:
    job = await until(world, id, JobStatus.PAUSED)
    assert job.holds == [Hold.UNCERTAIN_EFFECT], job.error_message
    (question,) = await steering.list_questions(world.db, world.admin.actor, id)
    return question


async def settle(world: World, id: UUID, verdict: Verdict, **more: Any) -> None:
    question = await question_of(world, id)
    answer = Answer(verdict=verdict, **more)
    await settlements.settle(world.db, world.admin.actor, id, question.call_id, answer)


# A worker that dies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [{}, {"on_uncertain": "ask_human"}], ids=["says nothing", "ask_human"])
@pytest.mark.parametrize(
    ("verdict", "result", "packed"), [(Verdict.HAPPENED, "seen", 1), (Verdict.DID_NOT_HAPPEN, "packed lamp", 2)]
)
@pytest.mark.proves("D.337")
async def test_people_are_asked_about_a_step_whose_worker_died(
    world: World, declared: dict[str, Any], verdict: Verdict, result: str, packed: int
) -> None:
    floor = Floor()
    app = coded(floor.agent(**declared))
    id = await orphaned(world, app)
    async with working(world.db, app):
        question = await question_of(world, id)
        assert floor.packed == ["lamp"]
        assert (question.tool_name, question.arguments) == ("plane.step", {"step": "pack", "arguments": ["lamp"]})
        assert question.text.startswith("`pack` was under way when its worker stopped, so the plane cannot tell")
        await settle(world, id, verdict, **({"result": "seen"} if verdict is Verdict.HAPPENED else {}))
        job = await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED)
    assert (job.error_message, job.result) == (None, {"value": [1, result, 2]})
    assert floor.packed == ["lamp"] * packed
    assert await keys_of(world, id) == [("before#0", "done"), ("pack#0", "done"), ("after#0", "done")]
    assert await whole(world)


@pytest.mark.proves("D.337")
async def test_the_card_of_a_step_says_which_it_is_and_may_give_the_job_up(
    world: World, http: httpx.AsyncClient
) -> None:
    headers = {"Authorization": f"Bearer {world.admin.secret}"}
    app = coded(Floor().agent())
    id = await orphaned(world, app)
    async with working(world.db, app):
        question = await question_of(world, id)
        (item,) = (await http.get(f"/v1/approvals?job_id={id}", headers=headers)).json()["items"]
        card = (await http.get(f"/v1/approvals/{item['id']}", headers=headers)).json()["approval"]
        assert card["kind"] == "uncertain_effect"
        assert card["question"] == question.text
        assert card["arguments"] == {"step": "pack", "arguments": ["lamp"]}
        body = {"verdict": "fail", "note": "the parcel is gone"}
        answer = await http.post(f"/v1/jobs/{id}/calls/{question.call_id}/settle", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        job = await until(world, id, JobStatus.FAILED)
    assert "the parcel is gone" in (job.error_message or "")
    entries = (await http.get(f"/v1/jobs/{id}/journal", headers=headers)).json()["items"]
    assert [(entry["key"], entry["kind"], entry["status"]) for entry in entries] == [
        ("before#0", "step", "done"),
        ("pack#0", "step", "failed"),
    ]
    assert entries[1]["error"]["type"] == "StepNotDone"


@pytest.mark.proves("D.337")
async def test_a_step_with_a_key_runs_again_with_the_same_key(world: World) -> None:
    floor = Floor(Died(), RuntimeError("reset"))

    async def run(ctx: Context) -> str:
        return await ctx.step("pack", floor.pack_with_key, "lamp", on_uncertain="retry_with_key", timeout=0.2)

    app = coded(run)
    id = await orphaned(world, app)
    async with working(world.db, app):
        job = await ended(world, id)
    assert (job.error_message, job.result) == (None, {"text": "packed lamp"})
    assert (len(floor.packed), len(floor.keys)) == (3, 1)


@pytest.mark.parametrize(
    ("answer", "result", "packed"),
    [(Happened("found"), "found", 1), (DidNotHappen(), "packed lamp", 2), (None, "seen", 1), ("yes", "seen", 1)],
)
@pytest.mark.proves("D.337")
async def test_a_probe_is_asked_about_a_step(world: World, answer: Any, result: str, packed: int) -> None:
    floor, probed = Floor(), []

    async def look(what: str, ctx: ToolContext) -> Any:
        probed.append((what, ctx.attempt))
        return answer

    app = coded(floor.agent(on_uncertain="probe", probe=look))
    id = await orphaned(world, app)
    async with working(world.db, app):
        if not isinstance(answer, Happened | DidNotHappen):
            await settle(world, id, Verdict.HAPPENED, result="seen")
        job = await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED)
    assert (job.error_message, job.result) == (None, {"value": [1, result, 2]})
    assert (floor.packed, probed) == (["lamp"] * packed, [("lamp", 1)])


@pytest.mark.proves("D.337")
async def test_a_step_may_give_its_job_up(world: World) -> None:
    floor = Floor()
    app = coded(floor.agent(on_uncertain="fail"))
    id = await orphaned(world, app)
    async with working(world.db, app):
        job = await ended(world, id)
    assert job.status is JobStatus.FAILED
    assert "Nobody knows whether `pack` happened, and it declares on_uncertain=fail." in (job.error_message or "")
    assert floor.packed == ["lamp"]


# A worker that lives -------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.337")
async def test_an_error_of_a_step_leaves_its_outcome_open(world: World) -> None:
    floor = Floor(ValueError("half a parcel"))
    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(floor.agent())):
        question = await question_of(world, id)
        assert question.error == "`pack` raised ValueError: half a parcel"
        await settle(world, id, Verdict.HAPPENED, result="half")
        job = await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED)
    assert (job.result, floor.packed) == ({"value": [1, "half", 2]}, ["lamp"])


@pytest.mark.parametrize("catches", [True, False])
@pytest.mark.proves("D.337")
async def test_a_tool_error_says_that_nothing_happened(world: World, catches: bool) -> None:
    floor, seen = Floor(ToolError("No lamps left.")), []

    async def run(ctx: Context) -> str:
        try:
            return await ctx.step("pack", floor.pack, "lamp", on_uncertain="ask_human")
        except StepFailed as error:
            seen.append((error.code, str(error)))
            if not catches:
                raise
        await ctx.sleep(0.01)
        return "went on"

    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run)):
        job = await ended(world, id)
    ((code, said),) = set(seen)
    assert code == "step_not_done"
    assert said.startswith("No lamps left. ")
    assert said.endswith("Catch StepFailed to go another way; otherwise the job fails.")
    assert floor.packed == ["lamp"]
    if catches:
        assert (job.error_message, job.result, len(seen)) == (None, {"text": "went on"}, 2)
    else:
        assert (job.status, job.retry_count) == (JobStatus.FAILED, 0)


@pytest.mark.proves("D.337")
async def test_a_step_is_written_before_it_runs(world: World, admin: asyncpg.Connection) -> None:
    rows: list[Any] = []

    async def look(ctx: ToolContext) -> None:
        rows.extend(await admin.fetch("select tool_name, status, verdict, rule, on_uncertain from tool_call"))
        rows.extend(await admin.fetch("select kind, status from journal_entry where key = 'look#0'"))
        ctx.state.set("looked", True)

    async def run(ctx: Context) -> Any:
        await ctx.step("look", look, on_uncertain="fail")
        return await ctx.state.get("looked")

    # No policy lets anything through, and steps are the agent's own code.
    await apply_policies(world.db, world.admin.actor, "policies: [{name: freeze, target: '*', effect: deny}]")
    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run)):
        job = await ended(world, id)
    assert (job.error_message, job.result) == (None, {"value": True})
    assert [tuple(row) for row in rows] == [("plane.step", "intended", "allow", "plane", "fail"), ("step", "open")]
    assert await admin.fetchval("select status from tool_call") == "completed"


@pytest.mark.proves("D.337")
async def test_large_results_of_steps_are_kept_apart(world: World) -> None:
    async def run(ctx: Context) -> int:
        big = await ctx.step("big", lambda: "x" * 2_000_000, on_uncertain="fail")
        await ctx.sleep(0.01)
        return len(big)

    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run)):
        assert (await ended(world, id)).result == {"value": 2_000_000}


@pytest.mark.proves("D.337")
async def test_branches_settle_their_steps_by_themselves(world: World) -> None:
    floor = Floor(ValueError("half a parcel"))

    async def run(ctx: Context) -> list[Any]:
        return await ctx.gather(
            ctx.step("pack", floor.pack, "lamp"), ctx.step("look", lambda: "seen", on_uncertain="fail")
        )

    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run)):
        await settle(world, id, Verdict.DID_NOT_HAPPEN)
        job = await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED)
    assert (job.error_message, job.result) == (None, {"value": ["packed lamp", "seen"]})


# Deploys and what is declared ----------------------------------------------------------------------------------------


@pytest.mark.proves("D.337")
async def test_a_step_that_is_open_is_settled_as_it_was_begun(world: World) -> None:
    floor = Floor()
    id = await orphaned(world, coded(floor.agent()))
    async with working(world.db, coded(floor.agent(repeatable=True))):
        await settle(world, id, Verdict.HAPPENED, result="seen")
        job = await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED)
    assert (job.result, floor.packed) == ({"value": [1, "seen", 2]}, ["lamp"])


@pytest.mark.proves("D.337")
async def test_what_a_step_declares_may_change_once_it_is_recorded(world: World) -> None:
    floor = Floor(None)

    def agent(**declared: Any) -> Code:
        async def run(ctx: Context) -> Any:
            done = await ctx.step("pack", floor.pack, "lamp", **declared)
            await ctx.wait_event("go", key="go", timeout=0.3)
            return done

        return run

    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(agent(repeatable=True))):
        await until(world, id, JobStatus.SLEEPING)
    async with working(world.db, coded(agent(on_uncertain="fail"))):
        job = await ended(world, id)
    assert "WaitTimeout" in (job.error_message or "")
    assert floor.packed == ["lamp"]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "both": ({"repeatable": True, "on_uncertain": "fail"}, "`repeatable` and says how it is settled"),
    "retries": ({"retries": 2, "on_uncertain": "fail"}, "`retries` and says how it is settled"),
    "retries alone": ({"retries": 2}, "has `retries`, and does not say that it may run again. Pass `repeatable=True`"),
    "unknown": ({"on_uncertain": "hope"}, "`on_uncertain='hope'` of the step `pack` is unknown"),
    "no probe": ({"on_uncertain": "probe"}, "The step `pack` is to be probed but has no probe"),
    "a probe too many": ({"probe": print}, "The step `pack` has a probe that would never be asked"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.proves("D.337")
async def test_a_declaration_that_means_nothing_fails_the_job(world: World, case: str) -> None:
    declared, words = BAD[case]
    floor = Floor(None)
    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(floor.agent(**declared))):
        job = await ended(world, id)
    assert job.status is JobStatus.FAILED
    assert words in (job.error_message or "")
    assert floor.packed == []


@pytest.mark.proves("D.337")
async def test_a_function_that_does_not_take_the_arguments_is_not_in_doubt(
    world: World, admin: asyncpg.Connection
) -> None:
    async def wrong(ctx: ToolContext, what: str) -> None:
        raise AssertionError("never called")

    async def run(ctx: Context) -> None:
        await ctx.step("pack", wrong, "lamp")

    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run)):
        job = await ended(world, id)
    assert job.status is JobStatus.FAILED
    assert "The step `pack` cannot call `wrong`: multiple values for argument 'ctx'." in (job.error_message or "")
    assert await admin.fetchval("select count(*) from tool_call") == 0


# Agents of the release before ----------------------------------------------------------------------------------------


async def earlier(world: World, admin: asyncpg.Connection) -> UUID:
    """A job of an agent that was there before the migration."""
    agent = await make_coded(world)
    await admin.execute("update agent set repeats_steps = true where id = $1", agent.id)
    return await submit(world, agent)


@pytest.mark.proves("D.338")
async def test_steps_of_earlier_agents_are_repeated_for_one_release_with_a_warning(
    world: World, admin: asyncpg.Connection
) -> None:
    floor = Floor(ConnectionError("not yet"), None)
    warn_undeclared.cache_clear()
    id = await earlier(world, admin)
    with capture_logs() as logs:
        async with working(world.db, coded(floor.agent(retries=1))):
            job = await ended(world, id)
    assert (job.error_message, floor.packed) == (None, ["lamp", "lamp"])
    (warning,) = [entry for entry in logs if entry["event"] == "step declares nothing"]
    assert (warning["agent"], warning["step"], warning["log_level"]) == ("coded", "pack", "warning")
    assert "on_uncertain='ask_human'" in warning["hint"]


@pytest.mark.parametrize("is_earlier", [True, False])
@pytest.mark.proves("D.338")
async def test_preflight_names_steps_that_declare_nothing(
    world: World, admin: asyncpg.Connection, is_earlier: bool
) -> None:
    async def run(ctx: Context) -> None:
        await ctx.step("first", lambda: 1)
        await ctx.step("second", lambda: 2, repeatable=True)
        await ctx.sleep(3600)

    id = await (earlier(world, admin) if is_earlier else submit(world, await make_coded(world)))
    app = coded(run)
    async with working(world.db, app):
        await until(world, id, JobStatus.SLEEPING)
    said = (await findings(world.db, app, replay=True))[id]
    assert [(f.reason, f.severity) for f in said] == [(Reason.STEP_UNDECLARED, Severity.WARNING)] * is_earlier
    if is_earlier:
        assert said[0].message.endswith("they run again where a worker dies: `first`.")


@pytest.mark.proves("D.338")
async def test_preflight_has_nothing_to_say_of_a_step_that_is_open(world: World) -> None:
    app = coded(Floor(ValueError("half a parcel")).agent())
    id = await submit(world, await make_coded(world))
    async with working(world.db, app):
        await question_of(world, id)
    assert (await findings(world.db, app, replay=True))[id] == []
