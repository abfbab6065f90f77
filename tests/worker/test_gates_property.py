"""No sequence of responses runs a gated action without its gate passed: random models, a real database, a real worker.

What happened is checked against the ledger and the chain, which the model cannot write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cortex_plane.agents.model.completions import (
    CallRequest,
    ModelRequest,
    ModelUsage,
    Response,
    TextChunk,
    provider_name,
)
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.ids import new_id
from cortex_plane.worker.models.backends import Backends
from tests.fixtures.gated import Desk, atlas, ban, before, delete, gate, get, governed, ledger, question, say, traces
from tests.fixtures.people import World
from tests.fixtures.workers import ended, submit, turn, whole, working

GATES = (
    gate("onboarding", "session_start", questions=[question("agree")], max_attempts=5),
    gate("delete-confirm", before("*.delete"), max_attempts=9),
    gate("admin", {"type": "capability_access", "capability_ids": ["admin"]}, unlock_capabilities=["admin"]),
    gate("back", {"type": "count_interval", "actions": 3}, max_attempts=9),
)
MANIFEST = atlas(
    *GATES,
    capabilities=[
        {"capability_id": "basic", "name": "Basic", "actions": ["ticket.*"]},
        {"capability_id": "admin", "name": "Admin", "actions": ["user.*"]},
    ],
    policies=[{"policy_id": "few", "type": "budget", "actions": ["ticket.get"], "max_calls": 4}],
)

RIGHT = [
    say("onboarding", agree=True), say("delete-confirm", sure="understood"), say("admin", sure="understood"),
    say("back", sure="understood"), say("com.acme.desk/delete-confirm", sure="Understood."),
]  # fmt: skip
WRONG = [
    say("onboarding", agree=False), say("delete-confirm", sure="no"), say("nothing", sure="understood"),
    {"tool": "plane.answer", "arguments": {}}, {"tool": "plane.unlock", "arguments": {"capability": "admin"}},
    {"tool": "plane.request_context", "arguments": {"name": "admin"}},
]  # fmt: skip
ACTS = [get("1"), delete("1"), delete("2"), ban("eve")]
CALL = st.one_of(st.sampled_from(RIGHT), st.sampled_from(ACTS), st.sampled_from(WRONG))
RESPONSE = st.lists(CALL, max_size=4)


class _Said:
    """A model that says these responses, one after the other, and then nothing more."""

    def __init__(self, responses: list[list[dict[str, Any]]]) -> None:
        self._responses = responses

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        calls: list[dict[str, Any]] = []
        if request.turn_index < len(self._responses):
            calls = self._responses[request.turn_index]
        made = tuple(
            CallRequest(id=f"c{request.turn_index}-{at}", name=provider_name(each["tool"]), arguments=each["arguments"])
            for at, each in enumerate(calls)
        )
        yield Response(
            text=None if made else "Well.", calls=made, usage=ModelUsage(prompt_tokens=1, completion_tokens=1)
        )


@pytest.mark.proves("D.379")
@settings(
    max_examples=25, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(responses=st.lists(RESPONSE, min_size=3, max_size=12))
async def test_no_sequence_of_responses_runs_what_its_gate_did_not_let_through(
    world: World, responses: list[list[dict[str, Any]]]
) -> None:
    desk = Desk()
    agent = await governed(world, MANIFEST, turn(text="unused"), model="random", slug=f"m{new_id().hex[-12:]}")
    # Most of them should get past the start.
    id = await submit(world, agent)
    model = _Said([[say("onboarding", agree=True)], *responses] if len(responses) % 3 else responses)
    async with working(world.db, desk.app, backends=Backends({"random": model})):
        job = await ended(world, id)
    assert job.status in (JobStatus.COMPLETED, JobStatus.FAILED)
    if job.status is JobStatus.FAILED:
        assert "is shut" in (job.error_message or "")
    told = await traces(world, job)
    passed = Counter(data["checkpoint_id"] for kind, data in told if kind == "passed")
    answered = Counter(
        data["checkpoint_id"] for kind, data in told if kind == "response" and data["validation_result"] == "valid"
    )
    made = [each for each in await ledger(world, id) if each.status == "completed"]
    acts = Counter(each.tool_name for each in made if not each.tool_name.startswith("plane."))
    # What happened outside is what the ledger says, and no more than what was let through.
    assert Counter(each.split()[0] for each in desk.done) == {name.split(".")[1]: count for name, count in acts.items()}
    assert passed == answered
    assert acts["ticket.delete"] <= passed["delete-confirm"]
    assert acts["ticket.get"] <= 4
    assert not acts or passed["onboarding"] == 1
    assert not acts["user.ban"] or passed["admin"] == 1
    # Every third call asks again before the next one runs.
    assert sum(acts.values()) <= 3 * (1 + passed["back"])


@pytest.mark.proves("D.379")
async def test_the_chain_holds_whatever_a_model_says(world: World) -> None:
    desk = Desk()
    agent = await governed(world, MANIFEST, turn(*RIGHT, *ACTS, *WRONG), turn(*ACTS), turn(*WRONG), turn(*RIGHT))
    async with working(world.db, desk.app):
        await ended(world, await submit(world, agent))
    assert await whole(world)
