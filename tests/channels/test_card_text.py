"""The lines of a card and their limits, and Markdown as blocks of styled text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cortex_plane.approvals.model.approvals import ApprovalStatus, Choice
from cortex_plane.channels.card_text import LineKind, card_lines, chunks, fit, plain_text
from cortex_plane.channels.markdown import BlockKind, StyledText, read_markdown
from cortex_plane.notify.model.notifications import CardVote
from tests.channels.test_webhook_channel import card

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def test_the_lines_of_a_card_stand_in_the_order_of_all_channels() -> None:
    lines = card_lines(
        card(question="Really?", rule_reason="Money leaves", deadline=NOW + timedelta(hours=2), shaped_by="Ann"), NOW
    )
    assert [line.label for line in lines if line.label] == [
        "Approval needed", "What", "What is asked", "Arguments, exactly as they would be sent",
        "The agent says (its own words, they may mislead)", "Agent", "It was asked", "Rule", "Reason of the rule",
        "May decide", "Expires", "Votes", "Shaped by",
    ]  # fmt: skip
    assert lines[0].text == "🟠 HIGH RISK · ship"
    (expiry,) = [line for line in lines if line.kind is LineKind.TIME]
    assert (expiry.at, expiry.text[:7]) == (NOW + timedelta(hours=2), "in 2 h.")


def test_a_card_that_is_over_says_how_and_not_when_it_would_expire() -> None:
    ended = card(
        status=ApprovalStatus.DENIED, resolved_by="Bea", resolved_at=NOW, resolution_reason="too early",
        votes=(CardVote(member="Bea", decision=Choice.DENIED, reason="too early"),),
    )  # fmt: skip
    text = plain_text(card_lines(ended, NOW))
    assert text.startswith("Denied by Bea: ")
    assert "Bea: denied (too early)" in text
    assert "Denied by Bea: 2026-05-01 12:00:00 UTC" in text
    assert "Expires" not in text
    assert "May decide" not in text


def test_explanations_are_cut_before_what_is_decided_on() -> None:
    lines = card_lines(card(arguments="x" * 1000, agent_says="y" * 1000, asked_for="z" * 1000), NOW)
    cut, is_whole = fit(lines, 2500)
    assert is_whole
    assert sum(line.size for line in cut) <= 2500
    assert "x" * 1000 in [line.text for line in cut]
    cut, is_whole = fit(lines, 1200)
    assert not is_whole
    assert sum(line.size for line in cut) <= 1200
    assert fit(lines, 100_000) == (list(lines), True)


@pytest.mark.parametrize("limit", [50, 64, 200, 5000])
def test_parts_of_a_reply_fit_and_lose_no_word(limit: int) -> None:
    text = "\n\n".join(f"Paragraph {n}. It has {'many ' * (n % 7)}words." for n in range(40))
    parts = chunks(text, limit)
    assert all(0 < len(part) <= limit for part in parts)
    assert " ".join(parts).split() == text.split()


def test_one_word_longer_than_the_limit_is_split() -> None:
    assert [len(part) for part in chunks("x" * 250, 100)] == [96, 96, 58]


def test_a_size_of_the_vendor_counts() -> None:
    def utf16(text: str) -> int:
        return len(text.encode("utf-16-le")) // 2

    parts = chunks("🟠" * 100, 64, utf16)
    assert all(utf16(part) <= 64 for part in parts)
    assert "".join(parts) == "🟠" * 100


def test_a_text_of_blanks_has_no_part() -> None:
    assert chunks(" \n \n", 100) == chunks(" " * 250, 100) == []


def test_a_fence_that_is_split_is_closed_and_opened_again() -> None:
    text = "Look:\n```python\n" + "\n".join(f"    line({n})" for n in range(30)) + "\n```\nDone."
    parts = chunks(text, 120)
    assert all(len(part) <= 120 for part in parts)
    assert all(part.count("```") % 2 == 0 for part in parts)
    code = [block.text for part in parts for block in read_markdown(part) if block.kind is BlockKind.CODE]
    assert "\n".join(code) == "\n".join(f"    line({n})" for n in range(30))


def test_markdown_becomes_styled_text() -> None:
    blocks = read_markdown(
        "# Plan\n\nDo **this** and `x < 1`:\n\n1. one\n2. two\n   - *three*\n\n> quoted\n\n```\na\n```"
    )
    assert [(block.kind.value, block.marker, block.depth, block.text) for block in blocks] == [
        ("heading", "", 0, "Plan"),
        ("paragraph", "", 0, "Do this and x < 1:"),
        ("item", "1.", 0, "one"),
        ("item", "2.", 0, "two"),
        ("item", "•", 1, "three"),
        ("quote", "", 0, "quoted"),
        ("code", "", 0, "a"),
    ]
    assert blocks[1].spans[1] == StyledText("this", frozenset({"bold"}))
    assert blocks[1].spans[3] == StyledText("x < 1", frozenset({"code"}))


def test_tabs_and_line_ends_of_code_are_not_marked() -> None:
    (block,) = read_markdown("```go\r\nif ok {\r\n\treturn \u202e\r\n}\r\n```")
    assert block.text == "if ok {\n    return ⟨U+202E⟩\n}"


def test_a_link_shows_where_it_leads() -> None:
    (block,) = read_markdown("[https://bank.example](https://evil.example/x) and <https://a.example>")
    assert block.text == "https://bank.example (https://evil.example/x) and https://a.example"


def test_html_and_hidden_characters_in_markdown_are_text() -> None:
    (block,) = read_markdown("<b onclick=x>hi</b> \u202egpj")
    assert block.text == "<b onclick=x>hi</b> ⟨U+202E⟩gpj"
