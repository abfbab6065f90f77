"""What agents wrote, as pages show it: inert, complete, and with nothing hidden."""

from __future__ import annotations

import hashlib
import json
import re
import time
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.approvals.model.approvals import Excerpt
from cortex_plane.dashboard import approvals, labels, text
from cortex_plane.dashboard.pages import ASSETS, FOLDER
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.text import readable_json, span

NOW = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)

HIDDEN = [
    "\u202e", "\u202d", "\u2066", "\u2069", "\u200f", "\u061c",  # turn text around
    "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u180e",  # are not seen
    "\x00", "\x07", "\x1b", "\r", "\t", "\x7f", "\x85", "\u2028", "\u2029",  # control
    "\u3164", "\u115f", "\u2800", "\u00a0", "\u2003", "\ufe0f", "\U000e0041", "\U000e0101",  # look like nothing
    "\ue000", "\U0010ffff",  # mean nothing to anybody else
]  # fmt: skip
VISIBLE = ["a", "é", "ß", "Ω", "ж", "中", "あ", "ا", "א", "🙂", "–", "€", "\n", " "]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


def shown(markup: str) -> str:
    """What a reader sees of it."""
    return unescape(re.sub(r"<[^>]*>", "", markup))


@pytest.mark.proves("D.75")
@pytest.mark.parametrize("character", HIDDEN, ids=lambda c: f"U+{ord(c):04X}")
def test_what_is_not_seen_is_shown_as_its_code_point(character: str) -> None:
    assert shown(text.reveal(f"a{character}b")) == f"a⟨U+{ord(character):04X}⟩b"
    assert text.hidden_in({"x": [character]}) is (character >= " ")  # JSON escapes control characters itself
    assert text.hidden_in({character: 1}) is (character >= " ")


@pytest.mark.parametrize("character", VISIBLE)
def test_what_is_seen_stays_as_it_is(character: str) -> None:
    assert shown(text.reveal(f"a{character}b")) == f"a{character}b"
    assert not text.hidden_in([character.strip() or "a"])


@pytest.mark.proves("D.75")
def test_markup_is_text() -> None:
    hostile = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
    for made in (
        text.reveal(hostile),
        text.tree({hostile: hostile}),
        text.brief({hostile: [hostile]}),
        text.leaf(hostile),
    ):
        assert "<script" not in made
        assert "<img" not in made
        assert "alert(1)" in made
    assert shown(text.reveal(hostile)) == hostile


@pytest.mark.proves("D.75")
@given(JSON)
def test_a_tree_leaves_nothing_out(value: Any) -> None:
    """What is shown, read as JSON again, is the value itself: the marks stand exactly where something was hidden."""
    seen = shown(text.tree(value))
    # A line break of ours follows the escape that it stands for.
    joined = re.sub(r"\\n\n", r"\\n", seen)
    restored = re.sub(r"⟨U\+([0-9A-F]{4,6})⟩", lambda m: _escape(int(m.group(1), 16)), joined)
    assert json.loads(restored) == value


def _escape(point: int) -> str:
    return json.dumps(chr(point))[1:-1]


@given(JSON, st.sampled_from([None, 2]))
def test_editable_json_means_the_same_and_hides_nothing(value: Any, indent: int | None) -> None:
    made = text.escaped_json(value, indent=indent)
    assert json.loads(made) == value
    assert not any(text.is_hidden(character) for character in made)


@given(JSON)
def test_readable_json_means_the_same_and_hides_nothing(value: Any) -> None:
    made = readable_json(value)
    assert json.loads(made) == value
    assert not any(text.is_hidden(character) for character in made)


def test_readable_json_is_indented_and_sorted() -> None:
    value = {"b": [1, {"c": None}], "a": "one\u202etwo", "e": {}}
    assert readable_json(value) == text.escaped_json(value, indent=2)


def test_a_tree_can_be_read() -> None:
    made = shown(text.tree({"b": [1, {"c": None}], "a": "one\ntwo", "e": {}}))
    assert made == '{\n  "a": "one\\n\ntwo",\n  "b": [\n    1,\n    {\n      "c": null\n    }\n  ],\n  "e": {}\n}'


LARGE = {
    "numbers": {"n": [0] * 131_000},
    "names": {str(n): n for n in range(18_000)},
    "empty": [[] for _ in range(80_000)],
    "nested": [{"a": {"b": [n]}} for n in range(14_000)],
    "lines": {"script": "\n" * 130_000},
    "hidden": {"text": "\u200b" * 85_000},
    "markup": ["<b>"] * 43_000,
}


@pytest.mark.proves("D.75")
@pytest.mark.parametrize("kind", LARGE)
def test_a_large_tree_is_whole_inert_and_made_in_no_time(kind: str) -> None:
    """Pages are made on the loop that serves everybody: what an agent may send must not stop it."""
    began = time.process_time()
    made = text.tree(LARGE[kind])
    assert time.process_time() - began < 0.8
    assert "<b>" not in made
    seen = re.sub(r"\\n\n", r"\\n", shown(made))
    restored = re.sub(r"⟨U\+([0-9A-F]{4,6})⟩", lambda m: _escape(int(m.group(1), 16)), seen)
    assert json.loads(restored) == LARGE[kind]


def test_a_backslash_before_an_n_is_no_line_break() -> None:
    assert shown(text.tree({"a": "C:\\new"})) == '{\n  "a": "C:\\\\new"\n}'


def test_a_name_turns_nothing_around_it() -> None:
    assert '<bdi class="j-key">' in text.tree({"א": 1})


def test_what_is_cut_says_so() -> None:
    assert text.cut({"a": 1}, 100) is None
    assert shown(text.cut({"a": "<b>\u202e" + "x" * 500}, 20) or "") == '{\n  "a": "<b>⟨U+202E⟩xxxxxx'
    assert shown(text.brief(Excerpt('{"a": "xxx'), 160)) == '{"a": "xxx…'


def test_a_name_that_stands_twice_is_found_in_no_time() -> None:
    names = ", ".join(f'"name {n}": 1' for n in range(20_000))
    began = time.process_time()
    with pytest.raises(InvalidInput, match="`name 19999` stands there twice"):
        approvals._arguments("{" + names + ', "name 19999": 2}')
    assert time.process_time() - began < 1


def test_a_brief_says_where_something_is_left_out() -> None:
    assert shown(text.brief({"b": 1, "a": "x"})) == 'a="x"  b=1'
    assert shown(text.brief({"a": "x" * 500}, 20)) == 'a="' + "x" * 16 + "…"


def test_changes_name_each_value() -> None:
    old = {"same": 1, "env": "production", "gone": True, "list": [1, 2], "kind": 1, "null": None}
    new = {"same": 1, "env": "staging", "new": None, "list": [1, 3, 4], "kind": True, "null": None}
    assert text.changes(old, new) == [
        ("env", "production", "staging"),
        ("gone", True, text.ABSENT),
        ("kind", 1, True),
        ("list[1]", 2, 3),
        ("list[2]", text.ABSENT, 4),
        ("new", text.ABSENT, None),
    ]
    assert text.changes(old, old) == []
    told = text.changes({"a": {"b": 1}, "a.b": 1, "[0]": 1, "": 1}, {"a": {"b": 2}, "a.b": 2, "[0]": 2, "": 2})
    assert [path for path, _, _ in told] == ['[""]', '["[0]"]', "a.b", '["a.b"]']
    assert text.changes([], {}) == [("(all)", [], {})]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-5, "0 s"),
        (0.4, "0 s"),
        (59, "59 s"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (86399, "23 h 59 min"),
        (90061, "1 d 1 h"),
    ],
)
def test_spans(seconds: float, said: str) -> None:
    assert span(seconds) == said


def test_times_carry_the_exact_moment() -> None:
    made = labels.until(NOW + timedelta(minutes=4, seconds=5), NOW)
    assert 'datetime="2026-01-05T09:04:05.000Z"' in made
    assert 'title="2026-01-05 09:04:05 UTC"' in made
    assert shown(made) == "4 min 5 s"
    assert shown(labels.until(NOW, NOW)) == "over"
    assert shown(labels.ago(NOW - timedelta(hours=5), NOW)) == "5 h ago"


@pytest.mark.proves("D.79")
def test_vendored_scripts_are_the_ones_that_were_reviewed() -> None:
    rows = re.findall(r"^\| (\S+\.js) \| \S+ \| (\S+) \|.*\| ([0-9a-f]{64}) \|$", _vendored(), re.MULTILINE)
    files = {path.name for path in (FOLDER / "vendor").glob("*.js")}
    assert {name for name, _, _ in rows} == files
    for name, version, digest in rows:
        assert version in name
        assert hashlib.sha256((FOLDER / "vendor" / name).read_bytes()).hexdigest() == digest
    for licence in re.findall(r"\]\((LICENSE[^)]+)\)", _vendored()):
        assert (FOLDER / "vendor" / licence).read_text().strip()


def _vendored() -> str:
    return (FOLDER / "vendor" / "VENDORED.md").read_text()


@pytest.mark.proves("D.79")
def test_pages_load_nothing_from_elsewhere_and_carry_no_inline_script_or_style() -> None:
    for page in (FOLDER.parent / "templates").glob("*.html"):
        source = page.read_text()
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|hx-on|javascript:|<script(?![^>]*\ssrc=)", source), page.name
        assert not re.search(r"""(?:src|href|action)=["'](?:https?:)?//""", source), page.name
        assert "|safe" not in source, page.name
    for name in ("app.js", "dashboard.css"):
        assert not re.search(rb"https?://|eval\(|innerHTML|@import|url\(", ASSETS[name].content), name
