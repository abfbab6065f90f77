"""A notifier in a process of its own, whose channel writes lines into a file; it may be killed anywhere.

python -m tests.runtime.notifier_process URL FILE
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cortex_plane.domain.notifications import Card, Outgoing, Sent
from cortex_plane.runtime.notifier import Notifier
from cortex_plane.storage.database import Database
from cortex_plane.storage.vault import Vault


class Filing:
    channel_type = "email"

    def __init__(self, path: Path) -> None:
        self._path = path

    def concerns(self, card: Card, shown: Mapping[str, Any]) -> bool:
        return card.status != shown.get("status")

    async def send(self, outgoing: Outgoing) -> Sent:
        card = outgoing.content
        assert isinstance(card, Card)
        with self._path.open("a") as file:
            file.write(
                f"{outgoing.target.address} {outgoing.id} {outgoing.version} {card.status} {card.action}\n"
            )
            file.flush()
            os.fsync(file.fileno())
        return Sent(message_ref=str(outgoing.id), shown={"status": card.status.value})


async def main(url: str, path: Path) -> None:
    db = await Database.open(url, max_size=4, vault=Vault(bytes(range(32))))
    notifier = Notifier(db, [Filing(path)], "https://plane.example")
    while await notifier.turn():
        pass
    await db.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
