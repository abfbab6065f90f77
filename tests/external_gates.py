"""An atlas for agents that run elsewhere, and what they send to get through it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx

from cortex_plane.proof.model import AuditRecord
from cortex_plane.proof.verbs import audit
from tests.atlases import govern, manifest, publish
from tests.people import Person, World

DESK = "com.acme.desk"
AGREE = {"gate": "onboarding", "answers": {"agree": True}}
SURE = {"gate": "delete-confirm", "answers": {"sure": "understood"}}
DELETE = {"tool": "ticket.delete", "arguments": {"ticket_id": "T-1"}}


def question(id: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"question_id": id, "question": f"About {id}?", "response_type": kind, **more}


def gate(id: str, trigger: dict[str, Any], mode: str = "blocking", **more: Any) -> dict[str, Any]:
    return {"checkpoint_id": id, "name": id.title(), "trigger": trigger, "mode": mode, **more}


ONBOARDING = gate(
    "onboarding", {"type": "session_start"}, questions=[question("agree", "boolean")],
    unlock_capabilities=["basic"], inject_contexts=["intro"],
    guidance={"content": "Be kind.", "format": "markdown"},
)  # fmt: skip
DELETE_CONFIRM = gate(
    "delete-confirm", {"type": "action_pre", "patterns": ["*.delete"]}, questions=[question("sure", "acknowledgment")]
)  # fmt: skip
ADMIN = gate(
    "admin", {"type": "capability_access", "capability_ids": ["admin"]},
    questions=[question("ack", "acknowledgment")],
)  # fmt: skip
PAYROLL = gate(
    "payroll", {"type": "keyword", "patterns": ["payroll"]},
    questions=[question("why", "text", validation={"min_length": 5})],
)  # fmt: skip
WIRE = gate(
    "wire", {"type": "action_pre", "patterns": ["wire.*"]}, audience="human",
    questions=[question("checked", "boolean")],
)  # fmt: skip
READ = gate("was-read", {"type": "action_post", "patterns": ["ticket.get"]}, "observational")
WENT_WRONG = gate("went-wrong", {"type": "error_occurred"}, "advisory", guidance={"content": "Slow down."})
ROUND = gate("round", {"type": "count_interval", "actions": 1000}, "observational")
"""With it every call that begins is counted in what gates remember."""
GOODBYE = gate("goodbye", {"type": "session_end"}, "observational")

CAPABILITIES = [
    {"capability_id": "basic", "name": "Basic", "actions": ["ticket.get", "ticket.list"]},
    {"capability_id": "erase", "name": "Erase", "actions": ["ticket.delete"]},
    {"capability_id": "admin", "name": "Admin", "actions": ["user.rename"]},
]
POLICIES = [
    {"policy_id": "wires", "type": "allow", "actions": ["wire.*", "export.*"]},
    {"policy_id": "no-root", "type": "deny", "actions": ["root.*"], "reason": "Nobody is root here."},
    {"policy_id": "lists", "type": "rate_limit", "actions": ["ticket.list"], "max_calls": 2, "window_seconds": 60},
    {"policy_id": "exports", "type": "budget", "actions": ["export.all"], "max_calls": 1},
]  # fmt: skip


def desk(version: str = "1.0.0", gates: list[dict[str, Any]] | None = None, **more: Any) -> str:
    every = [ONBOARDING, DELETE_CONFIRM, ADMIN, PAYROLL, WIRE, READ, WENT_WRONG, GOODBYE]
    made: dict[str, Any] = {
        "name": "Desk",
        "capabilities": CAPABILITIES,
        "checkpoints": every if gates is None else gates,
        "context_blocks": [{"context_id": "intro", "name": "Intro", "content": "You work for Acme."}],
        "policies": POLICIES,
        "actions": [
            {
                "action_id": "ticket.get", "risk_tier": "low",
                "parameters_schema": {"type": "object", "required": ["ticket_id"]},
            },
            {"action_id": "ticket.delete", "risk_tier": "high"},
        ],
    }  # fmt: skip
    return manifest(version, DESK, **(made | more))


async def governed(world: World, text: str | None = None) -> None:
    await publish(world, text or desk())
    await govern(world, DESK)


async def sent(
    http: httpx.AsyncClient, person: Person, path: str, status: int = 200, /, **body: Any
) -> dict[str, Any]:
    answer = await http.post(f"/v1{path}", json=body, headers=person.headers)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def opened(http: httpx.AsyncClient, person: Person, *, agrees: bool = False) -> str:
    made = await sent(http, person, "/sessions", 201, agent="deployer", kind="external")
    id = str(made["id"])
    if agrees:
        told = await sent(http, person, f"/sessions/{id}/answers", **AGREE)
        assert told["passed"], told
    return id


async def permissions(http: httpx.AsyncClient, person: Person, session: str) -> dict[str, Any]:
    answer = await http.get(f"/v1/sessions/{session}/permissions", headers=person.headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def trail(world: World, session: str) -> list[AuditRecord]:
    return list(await audit.list_entries(world.db, world.admin.actor, UUID(session), 0, 1000))


async def told(world: World, session: str, prefix: str = "checkpoint_") -> list[tuple[str, dict[str, Any]]]:
    """The facts of gates on the session's chain: name and payload."""
    return [
        (each.action, each.body["data"])
        for each in await trail(world, session)
        if each.action.startswith(prefix) and each.body is not None
    ]
