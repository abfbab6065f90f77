"""Agents whose sessions are bound to an atlas: their tools are counted outside of the plane, their model follows a script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

from cortex_plane.agents.model.agents import Agent
from cortex_plane.agents.model.completions import ModelRequest, Response, TextChunk
from cortex_plane.agents.model.tools import ToolError
from cortex_plane.gates import store as gates_store
from cortex_plane.gates.model.gates import GateState, state_of
from cortex_plane.jobs.model.jobs import Job, StepCall
from cortex_plane.proof.verbs import audit
from cortex_plane.worker.models.backends import ScriptedModel
from cortex_plane.worker.tools.app import App
from tests.atlases import plain, publish
from tests.people import World
from tests.runtime.planes import call, ended, make_agent, steps_of, submit, working

ATLAS = "com.acme.desk"


class Desk:
    """An app whose effects are counted outside of the plane."""

    def __init__(self, name: str = "tests") -> None:
        self.done: list[str] = []
        self.app = App(name)

        @self.app.tool(name="ticket.get", read_only=True)
        async def get(id: str) -> str:
            self.done.append(f"get {id}")
            return f"ticket {id}"

        @self.app.tool(name="ticket.delete", on_uncertain="retry_with_key", timeout=5)
        async def delete(id: str) -> str:
            self.done.append(f"delete {id}")
            return f"{id} is gone"

        @self.app.tool(name="user.ban", on_uncertain="retry_with_key", timeout=5)
        async def ban(who: str) -> str:
            self.done.append(f"ban {who}")
            return f"{who} is out"

        @self.app.tool(name="mail.send", on_uncertain="fail", timeout=5)
        async def send(to: str) -> str:
            self.done.append(f"mail {to}")
            if to == "nobody":
                raise ToolError("there is nobody to send it to")
            return "sent"

    @property
    def deleted(self) -> list[str]:
        return [each for each in self.done if each.startswith("delete")]


def get(id: str = "1") -> dict[str, Any]:
    return call("ticket.get", id=id)


def delete(id: str = "1") -> dict[str, Any]:
    return call("ticket.delete", id=id)


def ban(who: str = "eve") -> dict[str, Any]:
    return call("user.ban", who=who)


def say(gate: str, call_name: str | None = None, **answers: Any) -> dict[str, Any]:
    more = {} if call_name is None else {"call": call_name}
    return call(
        "plane.answer", gate=gate, answers={k.replace("_", "-"): v for k, v in answers.items()}, **more
    )


def ask_for(name: str) -> dict[str, Any]:
    return call("plane.request_context", name=name)


def gate(id: str, trigger: dict[str, Any] | str, **more: Any) -> dict[str, Any]:
    """A blocking gate with one acknowledgment, unless ``more`` says otherwise."""
    made: dict[str, Any] = {
        "checkpoint_id": id, "name": id.title(), "mode": "blocking",
        "trigger": {"type": trigger} if isinstance(trigger, str) else trigger,
    }  # fmt: skip
    if more.get("mode", "blocking") == "blocking":
        made["questions"] = [
            {"question_id": "sure", "question": "I understand.", "response_type": "acknowledgment"}
        ]
    return {**made, **more}


def before(*patterns: str) -> dict[str, Any]:
    return {"type": "action_pre", "patterns": list(patterns)}


def question(id: str, kind: str = "boolean", text: str = "Do you agree?", **more: Any) -> dict[str, Any]:
    return {"question_id": id, "question": text, "response_type": kind, **more}


DELETE = gate("delete-confirm", before("*.delete"))
ONBOARDING = gate("onboarding", "session_start", questions=[question("agree")])


NEVER_ROUND = gate("never-round", {"type": "count_interval", "actions": 1_000_000}, mode="observational")


def atlas(
    *gates: dict[str, Any], version: str = "1.0.0", atlas_id: str = ATLAS, counts: bool = True, **more: Any
) -> str:
    """Everything is allowed but for what its gates and ``more`` say. ``counts``: the calls that ran are counted."""
    return plain(atlas_id, version, checkpoints=[*gates, *([NEVER_ROUND] if counts else [])], **more)


async def governed(
    world: World, manifest: str, *script: dict[str, Any], slug: str = "clerk", **more: Any
) -> Agent:
    made = await publish(world, manifest)
    return await make_agent(world, list(script), slug=slug, **{"atlases": [made.version.atlas_id], **more})


async def run(
    world: World, desk: Desk, manifest: str, *script: dict[str, Any], payload: dict[str, Any] | None = None,
    backends: Any = None, **more: Any,
) -> Job:  # fmt: skip
    """A job of a governed agent, to its end."""
    agent = await governed(world, manifest, *script, **more)
    id = await submit(world, agent, payload)
    async with working(world.db, desk.app, backends=backends):
        return await ended(world, id)


async def traces(world: World, job: Job) -> list[tuple[str, dict[str, Any]]]:
    """What gates left on the session's chain: without `checkpoint_`, in order."""
    entries = await audit.list_entries(world.db, world.admin.actor, job.session_id, 0, 1000)
    return [
        (entry.action.removeprefix("checkpoint_"), entry.body["data"])
        for entry in entries
        if entry.action.startswith("checkpoint_") and entry.body is not None
    ]


async def traced(world: World, job: Job) -> list[str]:
    return [f"{kind} {data['checkpoint_id']}" for kind, data in await traces(world, job)]


async def state_in(world: World, session_id: UUID) -> GateState:
    async with world.db.transaction(world.org_id) as tx:
        bound, _ = await gates_store.bound_atlases(tx, session_id)
    assert bound is not None
    return state_of(bound["state"])


async def ledger(world: World, id: UUID) -> list[StepCall]:
    return [made for step in await steps_of(world, id) for made in step.calls]


async def calls_of(world: World, id: UUID) -> list[str]:
    """Tool and status of every call in the ledger."""
    return [f"{made.tool_name} {made.status}" for made in await ledger(world, id)]


class Listening:
    """The scripted model, which remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        self.asked.append(request)
        async for piece in ScriptedModel().stream(request):
            yield piece

    @property
    def notices(self) -> Sequence[str]:
        return [request.notice for request in self.asked]
