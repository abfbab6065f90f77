"""Replies that are longer than one message: one part at a time, so that the notifier can store each before it sends the next."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence

from cortex_plane.notify.model.notifications import ChatReply, Outgoing, Sent

SendPart = Callable[[str, str | None], Awaitable[str | None]]
"""Sends a text, or brings the message that it names up to date; returns the message."""
Part = list[str | None]
"""The message, and the digest of the text that it shows."""


def sent_parts(outgoing: Outgoing) -> list[Part]:
    """The parts that stand at the vendor already."""
    return [list(part) for part in outgoing.shown.get("parts", ())]


async def send_next_part(outgoing: Outgoing, texts: Sequence[str], send_part: SendPart) -> Sent:
    """Send the first part that the vendor does not show yet, or bring it up to date. ``Sent.more`` says whether others are left. Of
    a reply that its agent is still writing there is one part alone."""
    content = outgoing.content
    if isinstance(content, ChatReply) and content.is_partial:
        texts = texts[:1]
    parts, is_sent, more = sent_parts(outgoing), False, False
    for index, text in enumerate(texts):
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        ref, before = parts[index] if index < len(parts) else (None, None)
        if before == digest:
            continue
        if is_sent:
            more = True
            break
        parts[index : index + 1] = [[await send_part(text, ref), digest]]
        is_sent = True
    return Sent(message_ref=parts[0][0] if parts else outgoing.earlier, shown={"parts": parts}, more=more)
