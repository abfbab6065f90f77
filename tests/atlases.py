"""Atlases to test with: manifests as text, published through the operation that stewards call."""

from __future__ import annotations

import json
from typing import Any

from cortex_plane.agents.model.agents import Agent, AgentChange
from cortex_plane.agents.verbs import agents
from cortex_plane.gates.model.atlases import AtlasFile, Published
from cortex_plane.gates.verbs import atlases
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.model.credentials import KeyDraft
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import keys
from tests.people import Person, World

ATLAS = "com.acme.support"


def manifest(version: str = "1.0.0", atlas_id: str = ATLAS, **more: Any) -> str:
    """A small atlas: one capability, one gate, one policy. ``more`` takes the place of its keys."""
    made: dict[str, Any] = {
        "atlas_version": "1.0",
        "atlas_id": atlas_id,
        "version": version,
        "name": "Support",
        "description": "What support may do.",
        "steward": {"id": "acme", "name": "Acme"},
        "capabilities": [
            {"capability_id": "tickets", "name": "Tickets", "actions": ["ticket.get", "ticket.delete"]}
        ],
        "checkpoints": [
            {
                "checkpoint_id": "delete-confirm",
                "name": "Delete confirmation",
                "trigger": {"type": "action_pre", "patterns": ["*.delete"]},
                "mode": "blocking",
                "questions": [
                    {
                        "question_id": "sure",
                        "question": "I understand that this cannot be undone.",
                        "response_type": "acknowledgment",
                    }
                ],
            }
        ],
        "context_blocks": [{"context_id": "intro", "name": "Intro", "content": "You work for Acme."}],
        "policies": [
            {
                "policy_id": "ask-before-deleting",
                "type": "requires_approval",
                "actions": ["ticket.delete"],
                "reason": "Deleting needs a person.",
            }
        ],
        "actions": [
            {"action_id": "ticket.get", "name": "Get a ticket", "risk_tier": "low"},
            {"action_id": "ticket.delete", "name": "Delete a ticket", "risk_tier": "high"},
        ],
    }
    return json.dumps({**made, **more}, indent=2)


def steward(**more: Any) -> dict[str, Any]:
    return {"id": "acme", "name": "Acme", **more}


def plain(atlas_id: str, version: str, **more: Any) -> str:
    """The smallest one, which allows everything."""
    made = {
        "atlas_version": "1.0", "atlas_id": atlas_id, "version": version, "name": "Plain",
        "steward": {"id": "somebody", "name": "Somebody"},
        "policies": [{"policy_id": "everything", "type": "allow", "actions": ["*"]}],
    }  # fmt: skip
    return json.dumps({**made, **more})


async def publish(world: World, text: str | None = None, actor: Actor | None = None) -> Published:
    file = AtlasFile(manifest=text or manifest())
    return await atlases.publish_atlas(world.db, actor or world.admin.actor, file)


async def govern(world: World, *atlas_ids: str) -> Agent:
    """The world's agent names these atlases from now on."""
    change = AgentChange(skill_config={**world.agent.skill_config, "atlases": list(atlas_ids or [ATLAS])})
    return await agents.update_agent(world.db, world.admin.actor, world.agent.slug, change, None)


async def service(world: World, name: str, *roles: Role) -> Person:
    """A program whose key has this name."""
    draft = KeyDraft(name=name, roles=list(roles or [Role.MEMBER]))
    new = await keys.create_key(world.db, world.admin.actor, draft)
    assert new.secret is not None
    return Person(await keys.authenticate_key(world.db, new.secret), new.secret)
