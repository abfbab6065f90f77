"""The session of the plane for each caller and server. It outlives connections, processes and days for as long as a call in it is open or
in doubt: only there an identical call is found to be that one."""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from cortex_plane.kernel.errors import Conflict

if TYPE_CHECKING:
    from cortex_plane.client import Client
    from cortex_plane.client.sessions import ExternalSession

MAX_SESSIONS = 10_000


class LastingSessions:
    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._ids: OrderedDict[tuple[str, str], tuple[date, str]] = OrderedDict()

    async def open(self, caller: str, plane: Client, outside_id: str) -> str:
        """The id of its session. One of an earlier day ends where nothing in it is open. Raises what the plane answers."""
        at, today = (caller, outside_id), datetime.now(UTC).date()
        day, id = self._ids.get(at, (None, ""))
        if day == today:
            return id
        session = await plane.sessions.open_external(self._agent, outside_id=outside_id)
        if session.session.created_at.astimezone(UTC).date() < today and await _is_over(session):
            session = await plane.sessions.open_external(self._agent, outside_id=outside_id)
        self._ids[at] = today, str(session.id)
        while len(self._ids) > MAX_SESSIONS:
            self._ids.popitem(last=False)
        return str(session.id)


async def _is_over(session: ExternalSession) -> bool:
    """End it. The plane refuses that as long as a call in it runs, waits, or is in doubt."""
    try:
        await session.complete()
    except Conflict as error:
        return error.code == "external_over"
    return True
