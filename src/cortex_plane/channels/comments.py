"""Cards and replies as comments in the Markdown of GitHub and GitLab, and the commands that people write in comments.

Whatever an agent or a stranger wrote stands in code: there nothing is a mention, a reference, a link, HTML, or a quick action.
Lines of blocks are indented, because GitLab runs a quick action that starts a line even where it takes a block for text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels.card_text import (
    CardLine,
    LineKind,
    card_heading,
    card_lines,
    chunks,
    fit,
    one_line,
    time_text,
)
from cortex_plane.channels.markdown import BlockKind, MarkdownBlock, read_markdown, visible_text
from cortex_plane.notify.model.channels import (
    Button,
    ButtonAction,
    ButtonPress,
    InboundAnswer,
    InboundEvent,
    TypedButton,
    read_button,
    read_typed_button,
)
from cortex_plane.notify.model.notifications import Card, ChatReply, DeploymentVerdict, Occasion, Outgoing

MAX_WORDS = 2000
"""Characters of a reason or an answer; what follows is not read."""
NEWS = (Occasion.REMINDED, Occasion.ESCALATED)
"""What is said under a card that stands further up, besides changing it."""
_SPACE = 400
"""Characters that a comment needs besides its lines: marker, commands and link."""
_SHORTEST_REASON = 10
"""Characters; less of it says nothing."""
_GROWTH = 4
"""By how much markup may be longer than what it shows."""
_ACTIONS = {"approve": ButtonAction.APPROVE, "deny": ButtonAction.DENY, "respond": ButtonAction.RESPOND}
_VERBS = frozenset({"new", "status", "pause", "resume", "agents", "delegate", "link", "help", "start"})
_SIGILS = re.compile(r"([@#!$%&~]|\bGH-)(?=\w)", re.IGNORECASE)
_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~&^$])")


@dataclass(frozen=True, kw_only=True, slots=True)
class TypedCommand:
    """What the first line of a comment asks for: a button, or words for the agent."""

    button: TypedButton | None
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CommentStyle:
    """How the comments of one vendor differ."""

    prefix: str
    """Before each command."""
    limit: int
    """Characters of one comment."""

    def command(self, button: Button) -> str:
        """As people write it, with what they add."""
        words = {ButtonAction.APPROVE: "[reason]", ButtonAction.DENY: "reason", ButtonAction.RESPOND: "your answer"}
        return f"{self.prefix}{button.action.name.lower()} {button.short_id} {words[button.action]}"


def read_command(text: str, prefixes: Sequence[str]) -> TypedCommand | None:
    """``prefixes``: before `approve` and the like; the last one is also before words for the agent. None for other comments."""
    first, _, rest = text.strip().partition("\n")
    for prefix in prefixes:
        if not first.startswith(prefix):
            continue
        line = first.removeprefix(prefix).strip()
        verb, _, arguments = line.partition(" ")
        short_id, _, words = arguments.strip().partition(" ")
        if (action := _ACTIONS.get(verb.lower())) is not None:
            button = read_typed_button(TypedButton(action=action, short_id=short_id.lower()).data)
            if button is None:
                return None
            more = f"{words}\n{rest}" if action is ButtonAction.RESPOND else words
            return TypedCommand(button=button, words=more.strip()[:MAX_WORDS])
        if prefix == prefixes[-1] and line:
            slash = "/" if verb.lower() in _VERBS else ""
            return TypedCommand(button=None, words=f"{slash}{line}\n{rest}".strip())
    return None


def card_comment(outgoing: Outgoing, card: Card, style: CommentStyle, *, shows_arguments: bool) -> str:
    """The card, its commands and a link. Where others than the org read it, it names the request and links to the whole."""
    marker = f"<!-- cortex-plane {outgoing.id} v{outgoing.version} -->"
    lines = card_lines(card, outgoing.timestamp)
    if not shows_arguments:
        lines = _public_lines(card, lines)
    shown, is_whole = fit(lines, style.limit - _SPACE, _size)
    parts = [marker, *map(_markdown, shown)]
    buttons = [
        button
        for button in card.buttons
        if button.action is ButtonAction.DENY
        or (shows_arguments and (is_whole or button.action is not ButtonAction.APPROVE))
    ]
    if card.status is ApprovalStatus.PENDING and buttons:
        commands = "\n".join(style.command(button) for button in buttons)
        parts.append(f"To decide, write a comment whose first line is\n\n{code_block(commands)}")
    parts.append(f"[Open the request]({card.url})")
    return "\n\n".join(parts)


def fits_whole(card: Card, style: CommentStyle) -> bool:
    """Whether a comment shows everything that a decision about this card is about."""
    if card.truncated or card.redacted:
        return False
    _, is_whole = fit(card_lines(card, card.requested_at), style.limit - _SPACE, _size)
    return is_whole


def _public_lines(card: Card, lines: Sequence[CardLine]) -> list[CardLine]:
    """What may be read by everybody: that something of this risk waits, until when, and how it ended."""
    shown = [CardLine(label=card_heading(card), text=f"{card.risk.upper()} RISK", kind=LineKind.HEADING)]
    shown.append(
        CardLine(label="", text="This place is public: open the request to see what it is about.", kind=LineKind.NOTE)
    )
    return [*shown, *(line for line in lines if line.kind is LineKind.TIME)]


def reaction_to(event: InboundEvent, answer: InboundAnswer) -> str | None:
    """`+1` or `confused` where a reaction to the command is enough: all went well, or strangers could make us write in public."""
    is_well = not (answer.is_problem or answer.ask_for)
    if isinstance(event, ButtonPress) and (is_well or event.answer_to.get("public")):
        return "+1" if is_well else "confused"
    return None


def answer_comment(answer: InboundAnswer, style: CommentStyle) -> str:
    """The plane's words; where more are needed, the command that takes them."""
    button = read_button(answer.ask_for) if answer.ask_for else None
    if button is None:
        return _plain(answer.text)[: style.limit]
    return f"Words are missing. Write a comment whose first line is\n\n{code_block(style.command(button))}"


def news_comment(card: Card) -> str:
    """Says under a card that stands further up that it asks again."""
    return f"**{card_heading(card)}:** see the request above or [open it]({card.url})."


def verdict_comment(verdict: DeploymentVerdict, *, limit: int = 65_000, note: str = "") -> str:
    """What stands beside a deployment that may go on, or may not. Where it is too long, the reason is cut, and then the link is left
    out. ``note``: what remains to be done at the vendor."""
    by = f" by {_plain(one_line(verdict.decided_by, min(200, limit // 6)))}" if verdict.decided_by else ""
    parts = [f"{'Approved' if verdict.is_allowed else 'Rejected'}{by}."]
    rest = [*([note] if note else []), f"[Open it in Cortex Plane]({verdict.url})"]
    if verdict.reason:
        room = limit - len("\n\n".join([*parts, "", *rest])) - 2 * _longest_run(verdict.reason) - 4
        if room >= _SHORTEST_REASON:
            parts.append(code(one_line(verdict.reason, room)))
    parts += rest
    while len("\n\n".join(parts)) > limit:
        parts.pop()
    return "\n\n".join(parts)


@functools.lru_cache(maxsize=8)
def reply_comments(reply: ChatReply, limit: int) -> Sequence[str]:
    """An answer of an agent, in as many comments as it needs. It is split before it becomes markup: a comment that ended within code
    would leave the rest of that code in the next one, where it could mention people and run quick actions. Kept for a while, because the comments are sent one by one."""
    comments: list[str] = []
    for part in chunks(visible_text(reply.text), limit // _GROWTH):
        name = f"**{_plain(one_line(reply.agent, 200))}:**\n\n" if not comments else ""
        text = name + "\n\n".join(map(_rendered, read_markdown(part)))
        comments.append(text if len(text) <= limit else name + code_block(part))
    return tuple(comments)


def code(text: str) -> str:
    """One line as code. The fence is longer than any in the text."""
    line = one_line(text, 4000) or " "
    fence = "`" * (_longest_run(line) + 1)
    return f"{fence} {line} {fence}"


def code_block(text: str) -> str:
    fence = "`" * max(_longest_run(text) + 1, 3)
    lines = "\n".join(f"  {line}" for line in text.split("\n"))
    return f"{fence}text\n{lines}\n{fence}"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _size(line: CardLine) -> int:
    return len(_markdown(line)) + 2


def _markdown(line: CardLine) -> str:
    match line.kind:
        case LineKind.HEADING:
            return f"### {_plain(line.label)}: {code(line.text)}"
        case LineKind.FIELD:
            return f"**{_plain(line.label)}:** {code(line.text)}"
        case LineKind.QUOTE | LineKind.CODE:
            return f"**{_plain(line.label)}:**\n\n{code_block(line.text)}"
        case LineKind.TIME:
            return f"**{_plain(time_text(line))}**"
        case LineKind.NOTE:
            return _plain(line.text)


def _rendered(block: MarkdownBlock) -> str:
    if block.kind is BlockKind.CODE:
        return code_block(block.text)
    text = "".join(code(span.text) if "code" in span.styles else _plain(span.text) for span in block.spans)
    lines = text.replace("\n", "  \n")
    match block.kind:
        case BlockKind.HEADING:
            return f"**{lines}**"
        case BlockKind.ITEM:
            return f"{'  ' * block.depth}{'-' if block.marker in ('', '•') else block.marker} {lines}"
        case BlockKind.QUOTE:
            return f"> {lines}"
    return lines


def _plain(text: str) -> str:
    """Text outside of code: no markup, no mention, no reference, no link, no quick action."""
    apart = _SIGILS.sub("\\1\u200b", text).replace("://", ":\u200b//")
    return _MARKUP.sub(r"\\\1", re.sub(r"(?m)^(\s*)/", "\\1\u200b/", apart))
