"""Atlases written in Python, and queries of what an atlas says: the file's reader is the only judge."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

import cortex_plane
from cortex_plane.client import Client
from cortex_plane.gates.files.atlases import read
from cortex_plane.gates.files.builder import AtlasBuilder, CheckpointBuilder
from cortex_plane.gates.files.keys import (
    ACTION,
    ATLAS,
    CAPABILITY,
    CHECKPOINT,
    CONTEXT,
    GUIDANCE,
    POLICY,
    QUESTION,
    TRIGGER,
)
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.shapes import Record, Tagged
from tests.cli.test_cli_absences import live
from tests.cli.test_cli_jobs import Live
from tests.fixtures.atlases import ATLAS as SUPPORT
from tests.fixtures.atlases import manifest, publish
from tests.fixtures.people import World
from tests.gates.test_http_atlases import got

__all__ = ["live"]

EXAMPLE = Path("examples/atlases/acme-support.yaml")


def support() -> AtlasBuilder:
    """The example of the docs."""
    atlas = AtlasBuilder(
        "com.acme.support", "2.1.0", name="ACME Support Atlas", description="Customer support capabilities with governance",
        steward_id="acme-corp", steward_name="ACME Corporation", contact="atlas@acme.com",
    )  # fmt: skip
    atlas.set_access("authenticated", api_keys=["sk-acme-*"], requests_per_minute=100)
    atlas.notify("https://acme.com/cra-events", "policy_override", "high_risk_action")
    atlas.add_capability("basic-support", "ticket.get", "ticket.list", "ticket.comment", name="Basic Support")
    atlas.add_capability("admin-support", "ticket.delete", "ticket.reassign", "user.ban", name="Admin Support")
    start = atlas.add_checkpoint("onboarding", "session_start", name="Session Onboarding")
    start.ask("agree-terms", "Do you agree to ACME's terms of service?", "boolean", required=True)
    start.guide(
        "Welcome to ACME Support!\nPlease handle all customer data responsibly.\n", format="markdown"
    ).inject("intro-context", "policy-summary").unlock("basic-support")  # fmt: skip
    atlas.add_checkpoint(
        "delete-confirm",
        "action_pre",
        patterns=["*.delete"],
        name="Delete Confirmation",
        force_sync_trace=True,
        priority=900,
    ).ask("confirm-delete", "I understand this deletion cannot be undone", "acknowledgment")
    atlas.add_checkpoint("high-risk-gate", "risk_threshold", min_tier="high", name="High Risk Action Gate").ask(
        "justify-risk", "Provide justification for this high-risk action", "text", min_length=20
    ).guide("Proceed with caution. All actions are being audited.", format="system_instruction")
    atlas.add_checkpoint(
        "admin-gate", "capability_access", capability_ids=["admin-support"], name="Admin Access Gate"
    ).ask("admin-ack", "I am authorized to perform administrative actions", "acknowledgment").unlock("admin-support")  # fmt: skip
    atlas.add_context(
        "intro-context", "You are a support agent for ACME Corporation...", name="Introduction", inject_mode="on_demand"
    ).add_context(
        "policy-summary", "Key policies: No refunds after 30 days...", name="Policy Summary", inject_mode="on_demand"
    )
    return atlas.add_policy(
        "require-admin-approval",
        "requires_approval",
        "user.ban",
        "ticket.delete",
        reason="Admin actions require approval",
    )


@pytest.mark.proves("S5.239")
def test_what_is_built_is_the_file_that_somebody_would_write() -> None:
    written = orjson.loads(read(EXAMPLE.read_text()).manifest)
    built = orjson.loads(read(support().to_json(), name="a.json").manifest)
    # `delivery` has one value alone, so there is nothing to build.
    assert written["steward"].pop("delivery") == {"mode": "embedded"}
    declared = written.pop("actions")
    assert built == written
    whole = support()
    for action in declared:
        whole.add_action(**action)
    assert orjson.loads(read(whole.to_json(), name="a.json").manifest)["actions"] == declared
    assert whole.check() == []
    assert cortex_plane.AtlasBuilder is AtlasBuilder


@pytest.mark.proves("S5.239")
def test_every_key_of_the_file_can_be_built() -> None:
    functions = [
        function
        for kind in (AtlasBuilder, CheckpointBuilder)
        for _, function in inspect.getmembers(kind, inspect.isfunction)
    ]
    names = {name for function in functions for name in inspect.signature(function).parameters}
    said_by_methods = {
        "trigger", "questions", "guidance", "inject_contexts", "unlock_capabilities", "lock_capabilities", "allow_actions",
        "deny_actions", "validation", "atlas_version", "steward", "capabilities", "checkpoints", "context_blocks", "policies",
        "checkpoint_config",
    }  # fmt: skip
    shapes: list[Record | Tagged] = [
        ATLAS,
        CAPABILITY,
        CHECKPOINT,
        TRIGGER,
        QUESTION,
        GUIDANCE,
        CONTEXT,
        POLICY,
        ACTION,
    ]
    for shape in shapes:
        keys = (
            set(shape.fields) if isinstance(shape, Record) else {shape.tag, *shape.common}.union(*shape.kinds.values())
        )
        assert keys - said_by_methods <= names | {"response_type"}, shape.name


@pytest.mark.proves("S5.239")
def test_what_is_wrong_is_said_by_the_reader_of_files() -> None:
    atlas = AtlasBuilder("com.acme", "1", name="A", steward_id="a", steward_name="A")
    atlas.add_checkpoint("stops", "action_pre", patterns=["*"])
    with pytest.raises(InvalidInput, match="without `questions` stops nothing") as error:
        atlas.check()
    assert error.value.code == "invalid_atlas"


@pytest.mark.proves("S5.239", "S5.238")
async def test_a_built_atlas_is_published_and_queried(http: httpx.AsyncClient, world: World) -> None:
    async with Client("http://plane", world.admin.secret, transport=http._transport) as plane:
        assert (await plane.atlases.publish(support().to_file())).created
        rules = await plane.atlases.rules("com.acme.support", "2.1.0", action="ticket.delete")
        assert [(each.gate, each.relations, each.questions) for each in rules.gates] == [
            ("admin-gate", ["guards", "unlocks"], ["admin-ack"]),
            ("delete-confirm", ["before"], ["confirm-delete"]),
            ("high-risk-gate", ["risk"], ["justify-risk"]),
        ]
        assert [each.policy_id for each in rules.policies] == ["require-admin-approval"]
        assert [(each.capability_id, each.locked) for each in rules.capabilities] == [("admin-support", True)]
        basic = await plane.atlases.rules("com.acme.support", "2.1.0", capability="basic-support")
        assert [(each.gate, each.relations) for each in basic.gates] == [("onboarding", ["unlocks"])]
        assert basic.policies == []


@pytest.mark.proves("S5.238")
async def test_a_query_names_an_action_or_a_capability_that_there_is(http: httpx.AsyncClient, world: World) -> None:
    await publish(world, manifest())
    path = f"/v1/atlases/{SUPPORT}/versions/1.0.0/rules"
    rules = await got(http, world.admin, path, action="ticket.get")
    assert (rules["declared"]["risk_tier"], rules["gates"], rules["policies"]) == ("low", [], [])
    nothing = await got(http, world.admin, path, action="mail.send")
    assert [nothing[key] for key in ("gates", "capabilities", "policies", "declared")] == [[], [], [], None]
    wrong: list[dict[str, Any]] = [{}, {"action": "a", "capability": "b"}, {"capability": "ticket"}]
    for query in wrong:
        answer = await http.get(path, params=query, headers=world.admin.headers)
        assert answer.status_code == 422, query
    answer = await http.get(path.replace("1.0.0", "9"), params={"action": "a"}, headers=world.admin.headers)
    assert answer.status_code == 404


@pytest.mark.proves("S5.238")
def test_the_terminal_prints_what_concerns_an_action(live: Live) -> None:
    file = live.shell.folder / "atlas.json"
    file.write_text(manifest())
    live.shell.run("atlas", "publish", str(file))
    text = live.shell.run("atlas", "rules", SUPPORT, "--action", "ticket.delete").stdout
    assert text.splitlines() == [
        "action ticket.delete: risk high",
        "capability tickets (open): ticket.get, ticket.delete",
        "gate delete-confirm (blocking, 800): before; asks sure",
        "policy ask-before-deleting (requires_approval): Deleting needs a person.",
    ]
    assert live.shell.one("atlas", "rules", SUPPORT, "--capability", "tickets")["capability"] == "tickets"
