"""A process of its own that sends many messages of one person at once; several of them race each other.

It says ``ready`` when it is connected, waits for a line, and then prints what became of each message.
"""

from __future__ import annotations

import asyncio
import json
import sys
from uuid import UUID

from cortex_plane.db.database import Database
from cortex_plane.sessions.model.sessions import InboundMessage
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.verbs import frame
from tests.fixtures.servers import VAULT


async def send(url: str, secret: str, connection_id: UUID, count: int) -> list[list[str]]:
    db = await Database.open(url, min_size=10, max_size=10, vault=VAULT)
    actor = await frame.authenticate_key(db, secret)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    inbound = InboundMessage(external_user_id="u-1", agent="deployer", text="Hello")
    delivered = await asyncio.gather(
        *(sessions.ingest_message(db, actor, connection_id, inbound) for _ in range(count))
    )
    await db.close()
    return [delivery.created for delivery in delivered]


if __name__ == "__main__":
    url, secret, connection, count = sys.argv[1:]
    sys.stdout.write(json.dumps(asyncio.run(send(url, secret, UUID(connection), int(count)))) + "\n")
