"""The session of the plane for each caller and server. It outlives connections, processes and days for as long as a call in it is open or
in doubt: only there an identical call is found to be that one."""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from cortex_plane.client.authorization import PlaneCalls
from cortex_plane.kernel.errors import Conflict

if TYPE_CHECKING:
    from cortex_plane.client import Client
    from cortex_plane.client.sessions import ExternalSession
    from cortex_plane.mcp_gateway.gateway_calls import GatewayCaller

MAX_SESSIONS = 10_000


class LastingSessions:
    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._ids: OrderedDict[tuple[str, str], tuple[date, str]] = OrderedDict()
        self._calls: OrderedDict[tuple[str, str], PlaneCalls] = OrderedDict()

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
        _bound(self._ids)
        return str(session.id)

    def calls(self, caller: GatewayCaller, outside_id: str, session_id: str, runner: str) -> PlaneCalls:
        """The same for all calls of a session: where somebody ended it, its client does not go on in another one."""
        at = (caller.id, session_id)
        calls = self._calls.get(at)
        if calls is None or not calls.is_of(caller.plane):
            calls = self._calls[at] = PlaneCalls(caller.plane, agent=self._agent, session=outside_id, runner=runner)
            _bound(self._calls)
        return calls


def _bound(entries: OrderedDict[tuple[str, str], Any]) -> None:
    while len(entries) > MAX_SESSIONS:
        entries.popitem(last=False)


async def _is_over(session: ExternalSession) -> bool:
    """End it. The plane refuses that as long as a call in it runs, waits, or is in doubt."""
    try:
        await session.complete()
    except Conflict as error:
        return error.code == "external_over"
    return True
