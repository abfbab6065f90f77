"""A notifier with webhooks in a process of its own; it may be killed anywhere.

python -m tests.dashboard.callback_process URL CERTIFICATE
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Sequence

from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.worker.notifier import Notifier


async def here(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


async def main(url: str, certificate: str) -> None:
    db = await Database.open(url, max_size=4, vault=Vault(bytes(range(32))))
    trusting = ssl.create_default_context(cafile=certificate)
    channel = WebhookChannel(Allowed.parse("127.0.0.0/8"), resolver=here, ssl_context=trusting)
    notifier = Notifier(db, [channel], "https://plane.example")
    while await notifier.turn():
        pass
    await db.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
