"""Cards: what a channel shows of a request. Redacted, cut and made visible here, so that no channel can forget to.

A card is made from the very arguments that would be sent. Where it leaves something out it says so, and leads to the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from cortex_plane.approvals.model import approvals as approval_model
from cortex_plane.approvals.model.approvals import Approval, ApprovalDetails, ApprovalKind, ApprovalStatus, Choice, Vote
from cortex_plane.approvals.model.credentials import ASKS_FOR_LOGIN, SigningSecret
from cortex_plane.approvals.model.questions import ASK_PERSON
from cortex_plane.approvals.store import TokenRow, insert_tokens
from cortex_plane.approvals.verbs import credentials
from cortex_plane.db.database import Database, Transaction
from cortex_plane.gates.model.gates import ShownAnswer
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.text import escaped_json, marked, readable_json, redact, redact_text
from cortex_plane.notify.model.channels import Button, ButtonAction
from cortex_plane.notify.model.notifications import Card, CardAnswer, CardVote, Occasion
from cortex_plane.notify.verbs.channel_port import InteractiveChannel

LONGEST_ARGUMENTS = 4000
LONGEST_TEXT = 1000
LONGEST_LINE = 200
LONGEST_DETAIL = 500
MOST_DETAILS = 20
MORE = " … (cut)"


@dataclass(frozen=True, kw_only=True, slots=True)
class CardSource:
    """A request with everything around it that a card tells."""

    approval: Approval
    votes: Sequence[Vote]
    delegations: Sequence[approval_model.Delegation]
    deciders: Sequence[str]
    org: str
    redact: Sequence[str] | None
    """The org's own names of secrets, besides the plane's."""


def source_of(row: Mapping[str, Any], approval: Approval) -> CardSource:
    """From the columns of a query that reads a request for its card."""
    return CardSource(
        approval=approval,
        votes=[parse(Vote, vote) for vote in row["votes"]],
        delegations=[parse(approval_model.Delegation, hop) for hop in row["delegations"]],
        deciders=row["deciders"],
        org=row["org"],
        redact=row["redact"],
    )


_SAME = (
    "kind", "status", "version", "input_hash", "risk", "template", "invocations", "policy_version", "required_clearance",
    "escalation_level", "requested_at", "deadline", "resolved_at",
)  # fmt: skip
_WORDS = ("agent_says", "asked_for", "question", "rule_reason", "resolution_reason")
"""What a card takes over from its request: as it is, and as text that is redacted and cut."""


def card(source: CardSource, occasion: Occasion, public_url: str) -> Card:
    """Without anything that decides: see ``DecidingCards``."""
    approval, pen = source.approval, _Pen(source.redact or ())
    fields: dict[str, Any] = {name: getattr(approval, name) for name in _SAME}
    fields |= {name: pen.text(getattr(approval, name)) for name in _WORDS}
    card_content = Card(
        **fields,
        approval_id=approval.id,
        occasion=occasion,
        org=pen.line(source.org),
        agent=pen.line(approval.agent_name),
        tool=pen.line(approval.tool_name),
        target=pen.line(approval.target),
        if_nobody=approval_model.if_nobody_decides(approval),
        action=pen.line(approval.action or approval.action_summary),
        details=pen.details(approval.details),
        arguments=pen.arguments(approval.arguments),
        truncated=False,
        original_arguments=None if approval.original_arguments is None else pen.arguments(approval.original_arguments),
        rule=pen.line(approval.rule),
        gate_answers=tuple(map(pen.gate_answer, approval.gate_answers)),
        deciders=tuple(map(pen.line, source.deciders)),
        shaped_by=pen.text(approval_model.shaped_by(approval)),
        votes=tuple(
            CardVote(member=pen.line(vote.member), decision=vote.decision, reason=pen.text(vote.reason))
            for vote in source.votes
        ),
        votes_needed=approval.quorum.votes,
        delegations=tuple(
            (pen.line(hop.from_member), pen.line(hop.to_member), pen.text(hop.reason)) for hop in source.delegations
        ),
        resolved_by=pen.line(approval.resolved_by_name) if approval.resolved_by_name else None,
        is_question=approval.tool_name == ASK_PERSON and approval.kind is ApprovalKind.CALL,
        answer=pen.answer(approval.answer),
        url=f"{public_url.rstrip('/')}/approvals/{approval.id}",
    )
    return replace(card_content, truncated=pen.cut, redacted=pen.hid)


def may_approve(card: Card, channel: InteractiveChannel) -> bool:
    """Whether a message of this channel may carry `Approve`: where policy wants no login, and it shows all that would be approved."""
    if card.is_question or card.template in ASKS_FOR_LOGIN or card.truncated or card.redacted:
        return False
    return channel.shows_whole(card)


def with_buttons(card: Card, channel: InteractiveChannel, notification_id: UUID) -> Card:
    """With what its person may press; nothing once it is decided."""
    if card.status is not ApprovalStatus.PENDING or card.kind is ApprovalKind.UNCERTAIN_EFFECT:
        return card
    actions = [ButtonAction.APPROVE] if may_approve(card, channel) else []
    actions.append(ButtonAction.DENY)
    if card.kind is ApprovalKind.CALL and card.template not in ASKS_FOR_LOGIN:
        actions.append(ButtonAction.RESPOND)
    buttons = (Button(action=action, notification_id=notification_id, version=card.version) for action in actions)
    return replace(card, buttons=tuple(buttons))


class DecidingCards:
    """Cards that decide, for the messages of one transaction: the secret that signs is read once, and tokens are written together."""

    def __init__(self, db: Database, tx: Transaction, public_url: str) -> None:
        self._db, self._tx, self._public_url = db, tx, public_url
        self._secret: SigningSecret | None = None
        self._tokens: list[TokenRow] = []

    async def make(self, card: Card, *, member_id: UUID, notification_id: UUID | None, channel: str) -> Card:
        """With links and a token for this one person, where a request can be decided from outside at all. A token decides
        without another look, so it goes only where the card shows all that it would decide."""
        if (
            card.status is not ApprovalStatus.PENDING
            or card.kind is ApprovalKind.UNCERTAIN_EFFECT
            or card.deadline is None
        ):
            return card
        if self._secret is None:
            self._secret = await credentials.signing_secret(self._db, self._tx)
        links = credentials.sign_links(
            self._secret, approval_id=card.approval_id, member_id=member_id, channel=channel, deadline=card.deadline,
            public_url=self._public_url,
        )  # fmt: skip
        token = None
        if card.template not in ASKS_FOR_LOGIN and not card.truncated and not card.redacted:
            token, row = credentials.draft_token(
                self._tx, approval_id=card.approval_id, member_id=member_id, notification_id=notification_id,
                version=card.version, input_hash=card.input_hash, expires_at=card.deadline,
            )  # fmt: skip
            self._tokens.append(row)
        approve_url = None if card.is_question else links[Choice.APPROVED]
        deny_url = links[Choice.DENIED]
        respond_url = links[Choice.RESPONDED] if card.kind is approval_model.ApprovalKind.CALL else None
        return replace(card, approve_url=approve_url, deny_url=deny_url, respond_url=respond_url, token=token)

    async def write_tokens(self) -> None:
        """Before any of the cards is sent."""
        await insert_tokens(self._tx, self._tokens)
        self._tokens = []


def redacted(details: ApprovalDetails, names: Sequence[str]) -> ApprovalDetails:
    """The same request as it may be seen outside the dashboard; where nothing had to be hidden it is equal. Its own
    events and the requests before it are for the dashboard alone, and stay as they are."""
    approval = details.approval
    fields: dict[str, Any] = {name: _hidden(getattr(approval, name)) for name in _TEXTS}
    fields |= {name: redact(getattr(approval, name), names) for name in _VALUES}
    fields["gate_answers"] = [
        replace(answer, answer=redact({answer.question_id: answer.answer}, names)[answer.question_id])
        for answer in approval.gate_answers
    ]
    return replace(
        details,
        approval=replace(approval, **fields),
        votes=[replace(vote, reason=_hidden(vote.reason)) for vote in details.votes],
        delegations=[replace(hop, reason=_hidden(hop.reason)) for hop in details.delegations],
    )


_VALUES = ("arguments", "original_arguments", "details", "answer")
_TEXTS = (
    "agent_name", "tool_name", "target", "action", "action_summary", "agent_says", "asked_for", "question", "rule",
    "rule_reason", "resolution_reason",
)  # fmt: skip


def _hidden(text: str | None) -> str | None:
    return None if text is None else redact_text(text)


class _Pen:
    """Writes what a card says, and remembers whether it left something out."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.cut = self.hid = False

    def arguments(self, value: Any) -> str:
        """As JSON that a person can read."""
        return self._cut(readable_json(self._redacted(value)), LONGEST_ARGUMENTS)

    def answer(self, value: Any) -> str | None:
        """Words as they are, anything else as JSON."""
        return self.text(value) if value is None or isinstance(value, str) else self.arguments(value)

    def details(self, value: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """A few lines: what is long or nested is text, and cut."""
        if value is None:
            return None
        self.cut = self.cut or len(value) > MOST_DETAILS
        items = list(self._redacted(value).items())[:MOST_DETAILS]
        return {self.line(name): self._detail(inner) for name, inner in items}

    def _detail(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        return self._cut(marked(value) if isinstance(value, str) else escaped_json(value), LONGEST_DETAIL)

    def gate_answer(self, answer: ShownAnswer) -> CardAnswer:
        # By its question's id, so that a name that the org hides hides it too.
        value = self._redacted({answer.question_id: answer.answer})[answer.question_id]
        text = marked(value) if isinstance(value, str) else escaped_json(value)
        short = self._cut(text, LONGEST_TEXT)
        if answer.cut is not None and short == text:
            self.cut, short = True, text + MORE
        return CardAnswer(gate=self.line(answer.gate), question=self.text(answer.question) or "", answer=short)

    def text(self, text: str | None) -> str | None:
        return None if text is None else self._cut(marked(self._redacted(text)), LONGEST_TEXT)

    def line(self, text: str) -> str:
        """A line stays one: it may stand in a subject."""
        return self._cut(marked(" ".join(self._redacted(text).split("\n"))), LONGEST_LINE)

    def _redacted(self, value: Any) -> Any:
        card_content = redact(value, self._names)
        self.hid = self.hid or card_content != value
        return card_content

    def _cut(self, text: str, limit: int) -> str:
        if len(text) <= limit:
            return text
        self.cut = True
        return text[:limit] + MORE
