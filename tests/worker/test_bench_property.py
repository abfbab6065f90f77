"""The bench of stewards says what the worker does: generated atlases, policies, tools and calls, a real database, a real worker.

The verdict and the rule of each call in the ledger are compared with those of the bench, which plays the same session up to that
call under the policies and tools of the org.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from cortex_plane.agents.model.completions import (
    CallRequest,
    ModelRequest,
    ModelUsage,
    Response,
    TextChunk,
    provider_name,
)
from cortex_plane.calls.verbs.permissions import play_scenarios
from cortex_plane.gates.model.scenarios import ScenarioRun
from cortex_plane.jobs.model.jobs import TERMINAL, Job, JobStatus
from cortex_plane.kernel.ids import new_id
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from tests.fixtures.approvals import decide, pending_soon
from tests.fixtures.gated import ask_for, atlas, ban, before, delete, gate, get, governed, question, say
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import submit, turn, until, working

GATES = [
    gate("onboarding", "session_start", questions=[question("agree")], max_attempts=4, unlock_capabilities=["basic"]),
    gate("delete-confirm", before("*.delete"), max_attempts=5),
    gate(
        "which", before("ticket.*"), max_attempts=5,
        questions=[question("id", "text", "Which ticket?", validation={"equals_argument": "id"})],
    ),
    gate("risky", {"type": "risk_threshold", "min_tier": "high"}, max_attempts=5),
    gate("admin", {"type": "capability_access", "capability_ids": ["admin"]}, unlock_capabilities=["admin"]),
    gate("back", {"type": "count_interval", "actions": 2}, max_attempts=5),
    gate("task", {"type": "keyword", "patterns": ["go"]}, mode="advisory", deny_actions=["user.b*"]),
    gate("faq", {"type": "explicit_request", "patterns": ["faq"]}, mode="advisory", allow_actions=["user.ban"]),
    gate("done", {"type": "action_post", "patterns": ["ticket.delete"]}, mode="advisory", lock_capabilities=["basic"]),
    gate("boss", before("user.*"), audience="human"),
]  # fmt: skip
CAPABILITIES = [
    {"capability_id": "basic", "actions": ["ticket.*"]}, {"capability_id": "admin", "actions": ["user.*"]},
]  # fmt: skip
NO_CAPABILITIES = [{**one, "actions": [f"other.{one['capability_id']}"]} for one in CAPABILITIES]
RULES = [
    {"policy_id": "all", "type": "allow", "actions": ["*"]},
    {"policy_id": "no-ban", "type": "deny", "actions": ["user.ban"]},
    {"policy_id": "ask", "type": "requires_approval", "actions": ["ticket.delete"], "reason": "Sure?"},
    {"policy_id": "few", "type": "budget", "actions": ["ticket.get"], "max_calls": 2},
]
RISKS = st.sampled_from([None, "low", "medium", "high", "critical"])
POLICY = st.fixed_dictionaries(
    {
        "target": st.sampled_from(["*", "ticket.*", "ticket.delete", "*.ban", "user.ban"]),
        "effect": st.sampled_from(["allow", "deny", "requires_approval"]),
    },
    optional={
        "when": st.sampled_from(
            ['args.id == "1"', 'risk in ["high", "critical"]', "read_only", "args.amount > 3", 'session_kind == "programmatic"']
        ),
        "final": st.just(True),
    },
)  # fmt: skip
SAID = [
    say("onboarding", agree=True), say("onboarding", agree=False), say("delete-confirm", sure="understood"),
    say("delete-confirm", sure="no"), say("which", id="1"), say("which", id="2"), say("risky", sure="understood"),
    say("admin", sure="understood"), say("back", sure="understood"), say("nothing", sure="understood"), ask_for("faq"),
]  # fmt: skip
ACTS = [get("1"), get("2"), delete("1"), delete("2"), ban("eve")]
ANSWERS = [say("delete-confirm", sure="understood"), say("risky", sure="understood"), say("admin", sure="understood")]
AT_ONCE = st.lists(st.sampled_from([*ACTS, *SAID]), max_size=3)
"""Whatever comes."""
IN_TURN = st.builds(
    lambda act, back: [act, *ANSWERS, say("which", id=act["arguments"].get("id", "1")), act, *back],
    st.sampled_from(ACTS), st.sampled_from([[], [say("back", sure="understood")]]),
)  # fmt: skip
"""A call, right answers to what may stand before it, and the call again."""
RESPONSES = st.builds(
    lambda start, parts: [*start, *(one for part in parts for one in part), get("1")],
    st.sampled_from([[say("onboarding", agree=True)], [say("onboarding", agree=True)], []]),
    st.lists(AT_ONCE | IN_TURN, min_size=1, max_size=3),
)  # fmt: skip


class OneCallEach:
    """A model whose responses are these calls, one after the other, and then a text."""

    def __init__(self, calls: list[dict[str, Any]]) -> None:
        self._calls = calls

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        at = request.turn_index
        calls = self._calls[at : at + 1]
        made = tuple(
            CallRequest(id=f"c{at}", name=provider_name(one["tool"]), arguments=one["arguments"]) for one in calls
        )
        usage = ModelUsage(prompt_tokens=1, completion_tokens=1)
        yield Response(text=None if made else "Well.", calls=made, usage=usage)


def desk(name: str, risks: dict[str, str | None], *, read_only: bool) -> App:
    app = App(name)

    @app.tool(name="ticket.get", read_only=read_only, risk=risks["get"], on_uncertain=None if read_only else "fail")
    async def get(id: str) -> str:
        return id

    @app.tool(name="ticket.delete", risk=risks["delete"], on_uncertain="fail")
    async def delete(id: str) -> str:
        return id

    @app.tool(name="user.ban", risk=risks["ban"], on_uncertain="fail")
    async def ban(who: str) -> str:
        return who

    return app


@st.composite
def sessions(draw: st.DrawFn) -> dict[str, Any]:
    some = st.lists(st.sampled_from(range(len(GATES))), unique=True, max_size=6)
    rows = draw(st.lists(POLICY, max_size=3))
    return {
        "gates": [GATES[at] for at in sorted(draw(some))],
        "rules": [
            RULES[at] for at in sorted(draw(st.lists(st.sampled_from(range(len(RULES))), unique=True, max_size=3)))
        ],
        "capabilities": CAPABILITIES if draw(st.booleans()) else NO_CAPABILITIES,
        "policies": [{"name": f"p{at}", **row} for at, row in enumerate(rows)],
        "risks": {name: draw(RISKS) for name in ("get", "delete", "ban")},
        "read_only": draw(st.booleans()),
        "side_effect_tools": draw(st.sampled_from([[], ["ticket.get"]])),
        "tools": draw(st.sampled_from([None, None, ["ticket.get", "ticket.delete"]])),
        "calls": draw(RESPONSES),
    }


def scenarios(agent: str, calls: list[dict[str, Any]]) -> str:
    """One for each call of a tool: the session up to it, and what is decided about it."""
    events: list[dict[str, Any]] = []
    made: list[dict[str, Any]] = []
    for one in calls:
        arguments = one["arguments"]
        if one["tool"] == "plane.answer":
            events.append({"answered": arguments["gate"], "with": arguments["answers"]})
        elif one["tool"] == "plane.request_context":
            events.append({"requested": arguments["name"]})
        else:
            act = {"arguments": arguments}
            made.append({"name": "It", "session": [*events], "call": one["tool"], **act, "expect": {"shut": []}})
            events.append({"approved": one["tool"], **act})
    start: list[dict[str, Any]] = [{"said": "go"}]
    for one in made:
        one["session"] = [*start, *one["session"]]
    return json.dumps({"agent": agent, "session_kind": "programmatic", "scenarios": made})


@pytest.mark.proves("S5.261", "S5.263")
@settings(
    max_examples=40, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(session=sessions())
async def test_the_bench_agrees_with_the_worker(strict: World, session: dict[str, Any]) -> None:
    world, name = strict, f"m{new_id().hex[-12:]}"
    await apply_policies(world.db, world.admin.actor, json.dumps({"policies": session["policies"]}))
    manifest = atlas(
        *session["gates"], atlas_id=f"com.{name}", capabilities=session["capabilities"], policies=session["rules"]
    )
    limits = {key: session[key] for key in ("side_effect_tools", "tools") if session[key]}
    agent = await governed(world, manifest, turn(text="unused"), model="random", slug=name, app=name, **limits)
    app = desk(name, session["risks"], read_only=session["read_only"])
    async with working(world.db, app, backends=Backends({"random": OneCallEach(session["calls"])})):
        job = await approved_to_its_end(world, await submit(world, agent, {"text": "go"}))
    acts = [one for one in session["calls"] if not one["tool"].startswith("plane.")]
    made = [one for one in await verdicts(world, job.id) if not one["tool_name"].startswith("plane.")]
    report = await play_scenarios(world.db, world.admin.actor, ScenarioRun(scenarios=scenarios(name, session["calls"])))
    assert len(made) == len(acts) or job.status is JobStatus.FAILED
    for one, act, outcome in zip(made, acts, report.outcomes, strict=False):
        assert one["tool_name"] in (act["tool"], provider_name(act["tool"]))
        decision, rule = outcome.found["decision"], outcome.found["rule"]
        if one["verdict"] is not None:
            event(f"{one['verdict']} by {one['rule'].partition(':')[0]}")
            assert (decision, rule) == (one["verdict"], one["rule"].partition("@")[0])
        elif one["error"] is not None and one["error"].startswith("There is no tool"):
            assert rule == "not one of its agent's tools"
        else:  # it only reads, and leaves no verdict
            assert decision == ("allow" if one["status"] == "completed" else "deny"), one


async def verdicts(world: World, id: UUID) -> Sequence[Mapping[str, Any]]:
    async with world.db.transaction(world.org_id) as tx:
        return await tx.rows(
            "select tool_name, status, error, verdict, rule from tool_call where job_id = $1 order by step_index, position",
            id,
        )


async def approved_to_its_end(world: World, id: UUID) -> Job:
    """Whoever is asked approves."""
    while (job := await until(world, id, *TERMINAL, JobStatus.WAITING_FOR_APPROVAL)).status not in TERMINAL:
        for approval in await pending_soon(world, id):
            await decide(world, approval)
    return job
