"""The inbox: what waits for a decision, and what was decided lately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from starlette.responses import Response

from cortex_plane.approvals.model.approvals import Approval, Mark, Waiting
from cortex_plane.approvals.verbs import approvals
from cortex_plane.dashboard.pages import fingerprint
from cortex_plane.dashboard.visits import PageRouter, Visit, signed_in

router = PageRouter()

AT_MOST = 100
"""Rows of each list; more are a page further."""
LATELY = 8
ENDED = 60
"""How many of the last ends are looked at, for those that stay in their place."""
_FIRST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Inbox:
    mine: list[Approval]
    """What the visitor may decide, the most urgent first."""
    others: list[Approval]
    waiting: int
    """How many wait for the visitor in all, and for others."""
    elsewhere: int
    arrived: int
    """How many came since the list was shown. They wait behind a banner: a list must not move under a finger."""
    settled: list[Approval]
    page: int
    shown_at: datetime | None

    @property
    def rows(self) -> list[Approval]:
        return [*self.mine, *self.others]

    @property
    def more(self) -> bool:
        return max(self.waiting, self.elsewhere) > (self.page + 1) * AT_MOST


def arrange(
    waiting: Waiting, settled: Sequence[Approval], shown_at: datetime | None, *, page: int = 0
) -> Inbox:
    """``shown_at`` is how far the visitor's list reached: what came later is counted, what ended later stays in its place."""
    ended = ended_since(settled, shown_at) if page == 0 else []
    in_place = {a.id for a in ended}
    mine = sorted([*waiting.mine, *ended], key=lambda a: (a.deadline or _FIRST, a.requested_at, a.id))
    return Inbox(
        mine=mine,
        others=waiting.others,
        waiting=waiting.mine_total,
        elsewhere=waiting.others_total,
        arrived=waiting.arrived,
        settled=[a for a in settled if a.id not in in_place][:LATELY],
        page=page,
        shown_at=shown_at or _latest(waiting, settled),
    )


def ended_since(settled: Sequence[Approval], shown_at: datetime | None) -> list[Approval]:
    if shown_at is None:
        return []
    return [a for a in settled if a.requested_at <= shown_at < (a.resolved_at or a.requested_at)]


def _latest(waiting: Waiting, settled: Sequence[Approval]) -> datetime | None:
    """By the database's clock, as every time that it is compared with."""
    times = [waiting.latest, *(a.resolved_at for a in settled)]
    return max((at for at in times if at is not None), default=None)


async def _look(visit: Visit, shown_at: datetime | None) -> dict[str, Any]:
    page = _page(visit.request.query_params.get("page", ""))
    settled = await approvals.list_settled(visit.db, visit.actor, ENDED)
    waiting = await _waiting(visit, page, shown_at)
    none_known = waiting.mine_total + waiting.others_total == 0
    if shown_at is not None and none_known and not ended_since(settled, shown_at):
        shown_at = None  # nothing is under the finger: show all there is
        waiting = await _waiting(visit, page, None)
    inbox = arrange(waiting, settled, shown_at, page=page)
    return look(inbox, await approvals.marks_of_approvals(visit.db, visit.actor, inbox.rows))


async def _waiting(visit: Visit, page: int, shown_at: datetime | None) -> Waiting:
    return await approvals.list_inbox(visit.db, visit.actor, AT_MOST, skip=page * AT_MOST, shown_at=shown_at)


def _page(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0


def look(inbox: Inbox, marked: Mapping[UUID, Mark]) -> dict[str, Any]:
    """What the templates show."""
    seen = fingerprint(
        [
            (a.id, a.version, a.status, a.may_decide, a.votes_for, a.escalation_level, marked.get(a.id))
            for a in inbox.rows
        ],
        (inbox.arrived, inbox.waiting, inbox.elsewhere, inbox.page),
        [(a.id, a.status) for a in inbox.settled],
    )
    return {"inbox": inbox, "seen": seen, "waiting": inbox.waiting, "at_most": AT_MOST, "marks": marked}


async def show_inbox(visit: Visit) -> Response:
    return visit.page("inbox.html", **await _look(visit, None))


async def show_inbox_again(visit: Visit) -> Response:
    return visit.fragment(
        "inbox_list.html", **await _look(visit, _time(visit.request.query_params.get("shown_at")))
    )


def _time(text: str | None) -> datetime | None:
    try:
        at = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return at if at and at.tzinfo else None


router.add("/", signed_in(show_inbox), "GET")
router.add("/inbox/live", signed_in(show_inbox_again, by_itself=True), "GET")
