"""Replies that are longer than one message: which parts stand at the vendor already, so that a retry sends none twice."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from cortex_plane.notify.model.notifications import Outgoing, Sent

MOST_REPLIES = 1000
"""Of which the parts are remembered after a failure. Another process sends them anew: a part may stand there twice then."""

SendPart = Callable[[str, str | None], Awaitable[str | None]]
"""Sends a text, or brings the message that it names up to date; returns the message."""
Part = list[str | None]
"""The message, and the digest of the text that it shows."""


class ReplyParts:
    def __init__(self) -> None:
        self._unfinished: OrderedDict[UUID, list[Part]] = OrderedDict()

    async def send(self, outgoing: Outgoing, texts: Sequence[str], send_part: SendPart) -> Sent:
        """All parts, one message each, in order. While the agent still works, later calls bring them up to date."""
        parts = self._unfinished.pop(outgoing.id, None) or [list(part) for part in outgoing.shown.get("parts", ())]
        try:
            for index, text in enumerate(texts):
                digest = hashlib.sha256(text.encode()).hexdigest()[:16]
                ref, before = parts[index] if index < len(parts) else (None, None)
                if before != digest:
                    parts[index : index + 1] = [[await send_part(text, ref), digest]]
        except BaseException:
            self._unfinished[outgoing.id] = parts
            while len(self._unfinished) > MOST_REPLIES:
                self._unfinished.popitem(last=False)
            raise
        return Sent(message_ref=parts[0][0] if parts else outgoing.earlier, shown={"parts": parts})
