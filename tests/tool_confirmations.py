"""A tool that an MCP server offers, as a worker published it, and what a steward confirmed about it."""

from __future__ import annotations

from cortex_plane.agents.model.tools import ConfirmationDraft, OnUncertain, Risk, ToolVersion
from cortex_plane.agents.verbs import agents
from cortex_plane.db.database import Database
from cortex_plane.jobs.verbs import workers
from tests.people import World

DIGEST = "ab" * 32


def offered(name: str = "files.read_query", digest: str = DIGEST, **more: object) -> ToolVersion:
    given: dict[str, object] = {
        "app": "office", "name": name, "digest": digest, "description": "Read.", "parameters": {"type": "object"},
        "read_only": False, "risk": Risk.MEDIUM, "timeout_seconds": 30.0, "on_uncertain": OnUncertain.ASK_HUMAN,
        "server": "files", "remote_name": "read_query", "implementation": "sqlite 1", "hints": {"read_only_hint": True},
    }  # fmt: skip
    return ToolVersion(**{**given, **more})  # type: ignore[arg-type]


async def publish(db: Database, *versions: ToolVersion) -> list[ToolVersion]:
    return await workers.publish_tools(db, versions or [offered()])


async def confirmed(world: World) -> str:
    """The id of a confirmation in the org."""
    await publish(world.db)
    draft = ConfirmationDraft(tool="files.read_query", digest=DIGEST, read_only=True)
    return str((await agents.confirm_tool(world.db, world.admin.actor, draft)).id)
