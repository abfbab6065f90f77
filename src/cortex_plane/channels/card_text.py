"""The lines of a card in the order in which every channel shows them, and what cuts text to the limits of a vendor.

A channel renders each line by its kind, and escapes its text: all of it is an agent's or a stranger's. Hidden characters are
marked already.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from cortex_plane.approvals.model.approvals import ApprovalKind, ApprovalStatus, Choice
from cortex_plane.kernel.text import marked, span, stamp
from cortex_plane.notify.model.notifications import Alert, Card, Invitation, Occasion

CUT = " … (cut)"
SHORTEST_TEXT = 120
"""Cut no further than that."""
RISK_SYMBOLS = {"low": "🟢", "medium": "🟡", "high": "🟠", "critical": "🔴"}
_HEADINGS = {
    Occasion.REQUESTED: "Approval needed",
    Occasion.ESCALATED: "Escalated to you",
    Occasion.DELEGATED: "Delegated to you",
    Occasion.REMINDED: "Reminder, approval needed",
    Occasion.CHANGED: "Changed, approval needed",
    Occasion.RESOLVED: "Approval needed",
}


class LineKind(StrEnum):
    HEADING = "heading"
    """The first line: the label is what the card wants or how it ended, the text is risk, tool and target."""
    FIELD = "field"
    """A label and a value on one line."""
    QUOTE = "quote"
    """A label, and under it words of somebody else that may have several lines."""
    CODE = "code"
    """A label, and under it JSON or text whose spaces count."""
    TIME = "time"
    """A label, the time ``at`` and, as the text, what goes with it."""
    NOTE = "note"
    """A sentence of the plane, without a label."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardLine:
    label: str
    text: str
    kind: LineKind
    at: datetime | None = None
    """A time, for channels that show it in the reader's own."""
    is_decided_on: bool = False
    """A decision is about exactly this: `Approve` needs it whole."""

    @property
    def size(self) -> int:
        return len(self.label) + len(self.text) + (30 if self.at else 0) + 8


def card_lines(card: Card, now: datetime) -> Sequence[CardLine]:
    """Risk, tool and target → arguments → what the agent says → what it was asked → the rule → who may decide → expiry →
    votes and outcome."""
    lines = [CardLine(label=card_heading(card), text=_title(card), kind=LineKind.HEADING)]
    lines += _request_lines(card)
    lines += _rule_lines(card)
    if card.status is ApprovalStatus.PENDING:
        lines += _deadline_lines(card, now)
    lines += _vote_lines(card)
    if card.status is not ApprovalStatus.PENDING:
        lines += _outcome_lines(card)
    return lines


def card_heading(card: Card, *, is_first: bool = True) -> str:
    """What the card wants, or how its request ended and by whom. ``is_first``: its reader had no message about it before."""
    by = f" by {card.resolved_by}" if card.resolved_by else ""
    match card.status:
        case ApprovalStatus.PENDING if card.kind is ApprovalKind.UNCERTAIN_EFFECT:
            return "Reminder, did it happen?" if card.occasion is Occasion.REMINDED else "Did it happen?"
        case ApprovalStatus.PENDING if card.is_question:
            return "Reminder, an agent asks you" if card.occasion is Occasion.REMINDED else "An agent asks you"
        case ApprovalStatus.PENDING if card.occasion is Occasion.ESCALATED and not is_first:
            return "Escalated further, approval needed"
        case ApprovalStatus.PENDING:
            return _HEADINGS[card.occasion]
        case status if by and (status is ApprovalStatus.RESPONDED or card.kind is ApprovalKind.UNCERTAIN_EFFECT):
            return f"Answered{by}"
        case status:
            return status.value.capitalize() + by


def _title(card: Card) -> str:
    times = f" ×{card.invocations}" if card.invocations > 1 else ""
    symbol = RISK_SYMBOLS.get(card.risk, "⚪")
    return f"{symbol} {card.risk.upper()} RISK · {one_line(card.subject, 300)}{times}"


def _request_lines(card: Card) -> list[CardLine]:
    lines = [_field("What", card.action)]
    if card.question:
        lines.append(CardLine(label="What is asked", text=card.question, kind=LineKind.QUOTE, is_decided_on=True))
    lines.append(
        CardLine(
            label=_arguments_label(card), text=card.arguments, kind=LineKind.CODE, is_decided_on=not card.is_question
        )
    )
    if card.truncated:
        lines.append(_note("There is more than this message shows. Open the request to see the whole."))
    if card.redacted:
        lines.append(_note("What is [redacted] is hidden by your org's rules. Open the request to see it."))
    if card.original_arguments:
        lines.append(CardLine(label="Before somebody edited them", text=card.original_arguments, kind=LineKind.CODE))
    if card.agent_says:
        lines.append(_quote("The agent says (its own words, they may mislead)", card.agent_says))
    if card.details:
        lines.append(_quote("The job adds (its own words, they may mislead)", _details(card)))
    lines.append(_field("Proposed by" if card.kind is ApprovalKind.CHANGE else "Agent", f"{card.agent} ({card.org})"))
    if card.asked_for:
        lines.append(_quote("It was asked", card.asked_for))
    return lines


def _arguments_label(card: Card) -> str:
    if card.is_question:
        return "The question"
    if card.truncated or card.redacted:
        return "Arguments, in part"
    if card.kind is ApprovalKind.CHANGE:
        return "Arguments, what changes"
    return "Arguments, exactly as they would be sent"


def _details(card: Card) -> str:
    return "\n".join(
        f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)}"
        for name, value in sorted((card.details or {}).items())
    )


def _rule_lines(card: Card) -> list[CardLine]:
    policies = "" if card.names_version else f"policies {card.policy_version}, "
    rule = f"{card.rule} ({policies}{card.template.value}, clearance {card.required_clearance})"
    lines = [_field("Rule", rule)]
    if card.rule_reason:
        lines.append(_quote("Reason of the rule", card.rule_reason))
    if card.gate_answers:
        answers = "\n".join(f"{entry.gate}: {entry.question}\n{entry.answer}" for entry in card.gate_answers)
        lines.append(_quote("The agent answered gates (its own words, they may mislead)", answers))
    return lines


def _deadline_lines(card: Card, now: datetime) -> list[CardLine]:
    lines = []
    if card.deciders:
        lines.append(_field("May decide", ", ".join(card.deciders)))
    if card.deadline is None:
        lines.append(_note("It waits until somebody knows; nothing expires."))
    else:
        left = span((card.deadline - now).total_seconds())
        lines.append(
            CardLine(label="Expires", text=f"in {left}. {card.if_nobody}", kind=LineKind.TIME, at=card.deadline)
        )
    return lines


def _vote_lines(card: Card) -> list[CardLine]:
    approvals = sum(vote.decision is Choice.APPROVED for vote in card.votes)
    lines = [_field("Votes", f"{approvals} of {card.votes_needed}")]
    for vote in card.votes:
        lines.append(_field(vote.member, vote.decision.value + (f" ({vote.reason})" if vote.reason else "")))
    for giver, taker, why in card.delegations:
        lines.append(_field("Delegated", f"{giver} to {taker}" + (f" ({why})" if why else "")))
    if card.escalation_level:
        lines.append(_field("Escalated", f"level {card.escalation_level}"))
    if card.shaped_by:
        lines.append(_field("Shaped by", card.shaped_by))
    return lines


def _outcome_lines(card: Card) -> list[CardLine]:
    lines = []
    if card.resolved_at:
        lines.append(CardLine(label=card_heading(card), text="", kind=LineKind.TIME, at=card.resolved_at))
    if card.resolution_reason:
        lines.append(_quote("Reason", card.resolution_reason))
    if card.answer:
        is_late = card.status is ApprovalStatus.EXPIRED
        lines.append(_quote("Answer, because nobody answered in time" if is_late else "Answer", card.answer))
    elif card.status is ApprovalStatus.EXPIRED:
        effect = "nothing changed" if card.kind is ApprovalKind.CHANGE else "the call was not sent"
        lines.append(_note(f"Nobody decided in time, so {effect}."))
    if card.status is ApprovalStatus.CANCELLED:
        cause = "Another version came into force" if card.kind is ApprovalKind.CHANGE else "Its job ended"
        lines.append(_note(f"{cause} before anybody decided."))
    return lines


def short_lines(content: Invitation | Alert, now: datetime) -> Sequence[CardLine]:
    """What is sent without buttons; its address is shown besides."""
    if isinstance(content, Invitation):
        left = span((content.expires_at - now).total_seconds())
        return (
            CardLine(label="Confirm this account", text=one_line(content.org, 200), kind=LineKind.HEADING),
            _note(f"{one_line(content.invited_by, 200)} asks whether messages for you may come here."),
            CardLine(label="Valid until", text=f"{left} from now", kind=LineKind.TIME, at=content.expires_at),
        )
    return (
        CardLine(label="Job failed", text=one_line(f"{content.agent} ({content.org})", 300), kind=LineKind.HEADING),
        _note("Its checkpoint cannot be trusted, so it was not resumed."),
        _field("Job", str(content.job_id)),
        _field("Fault", content.corruption_type),
        CardLine(label="When", text="", kind=LineKind.TIME, at=content.happened_at),
        _quote("What was found", marked(content.message)),
    )


def shows_whole(card: Card, fit_card: Callable[[Sequence[CardLine]], tuple[Sequence[CardLine], bool]]) -> bool:
    """Whether a message shows all that a decision is about. ``fit_card`` cuts to what a message of the channel holds."""
    if card.truncated or card.redacted:
        return False
    _, is_whole = fit_card(card_lines(card, card.requested_at))
    return is_whole


def concerns_every_change(card: Card, last: Mapping[str, Any]) -> bool:
    """For channels that edit their messages, which disturbs nobody. Not a request that ended before its first message."""
    return bool(last) or card.status is ApprovalStatus.PENDING


def plain_text(lines: Sequence[CardLine]) -> str:
    """For channels without markup, and for the text beside a message that notifications of a phone show."""
    return "\n".join(map(_plain, lines))


def _plain(line: CardLine) -> str:
    match line.kind:
        case LineKind.HEADING:
            return f"{line.label}: {line.text}"
        case LineKind.TIME:
            return time_text(line)
        case LineKind.NOTE:
            return line.text
        case LineKind.FIELD:
            return f"{line.label}: {line.text}"
    # Indented, so that lines of others cannot pass for ours.
    return f"{line.label}:\n" + "\n".join(f"  {part}" for part in line.text.split("\n"))


def time_text(line: CardLine) -> str:
    """A time in UTC, for vendors that know nothing of their readers' time."""
    at = stamp(line.at) if line.at else ""
    return f"{line.label}: {at}{f' ({line.text})' if line.text else ''}"


def fit(
    lines: Sequence[CardLine], limit: int, size: Callable[[CardLine], int] | None = None
) -> tuple[Sequence[CardLine], bool]:
    """The same lines within a limit, and whether all that a decision is about is still whole. What explains is cut before what is
    decided on. ``size`` measures one line as the vendor counts it."""
    measure = size or _line_size
    result = list(lines)
    for cuts_all in (False, True):
        longest = max((len(line.text) for line in result), default=0)
        while sum(map(measure, result)) > limit and longest > SHORTEST_TEXT:
            longest = max(longest * 3 // 4, SHORTEST_TEXT)
            result = [cut_line(line, longest) if cuts_all or not line.is_decided_on else line for line in result]
    while sum(map(measure, result)) > limit and len(result) > 1:
        result.pop()
    is_whole = sum(line.is_decided_on for line in result) == sum(line.is_decided_on for line in lines) and all(
        after.text == before.text for before, after in zip(lines, result, strict=False) if before.is_decided_on
    )
    return result, is_whole


def _line_size(line: CardLine) -> int:
    return line.size


def cut_line(line: CardLine, longest: int) -> CardLine:
    if len(line.text) <= longest:
        return line
    return replace(line, text=line.text[:longest].removesuffix(CUT) + CUT)


def one_line(text: str, limit: int) -> str:
    """Nothing in it can end the line."""
    line = marked(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


_FENCE = "```"
_BREAKS = ("\n\n", "\n", ". ", " ")


def chunks(text: str, limit: int, size: Callable[[str], int] = len) -> Sequence[str]:
    """A text in parts of at most ``limit``, split between paragraphs, else lines, sentences, words. A fence of Markdown that is
    split is closed and opened again. ``size`` counts as the vendor does; it must not exceed the limit for a third of its characters."""
    parts: list[str] = []
    rest, opening = text.strip("\n"), ""
    while rest:
        room = limit - size(opening) - len(f"\n{_FENCE}")
        if size(rest) + size(opening) <= limit:
            parts.append(opening + rest)
            break
        head = _head(rest, room, size)
        rest = rest[len(head) :].lstrip("\n" if opening or _open_fence(opening + head) else " \n")
        part = opening + head.rstrip()
        opening = _open_fence(part)
        parts.append(f"{part}\n{_FENCE}" if opening else part)
    return [part for part in parts if part.strip()]


def _head(text: str, room: int, size: Callable[[str], int]) -> str:
    end = min(room, len(text))
    while size(text[:end]) > room:
        end -= max((size(text[:end]) - room) // 2, 1)
    window = text[:end]
    for mark in _BREAKS:
        at = window.rfind(mark)
        if at > end // 2:
            return window[: at + len(mark)]
    return window


def _open_fence(text: str) -> str:
    """The line that opened the fence in which a text ends; empty outside of fences."""
    opening = ""
    for line in text.split("\n"):
        if line.lstrip().startswith(_FENCE):
            opening = "" if opening else line.strip()[:40] + "\n"
    return opening


def _field(label: str, text: str) -> CardLine:
    return CardLine(label=one_line(label, 200), text=one_line(text, 1200), kind=LineKind.FIELD)


def _quote(label: str, text: str) -> CardLine:
    return CardLine(label=label, text=text, kind=LineKind.QUOTE)


def _note(text: str) -> CardLine:
    return CardLine(label="", text=text, kind=LineKind.NOTE)
