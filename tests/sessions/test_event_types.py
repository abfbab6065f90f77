"""The vocabulary of events: one table, and what is written from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cortex_plane.db.database import EVENT_VERBS, SQL, every_query
from cortex_plane.sessions.model.events import INBOX, EventType

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "cortex_plane"


@pytest.mark.proves("D.60")
def test_every_type_says_what_it_carries_and_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "events.md").read_text()
    for kind in EventType:
        assert kind.meaning
        row = f"| `{kind}` | {kind.meaning} | {', '.join(f'`{name}`' for name in kind.fields)} |"
        assert row in page, f"{kind}: run `make docs`"


def test_an_inbox_hears_of_everything_that_concerns_it() -> None:
    migrations = "".join(path.read_text() for path in sorted((SQL / "migrations").glob("*.sql")))
    index = migrations[migrations.rindex("create index idx_event_approvals") :].partition(";")[0]
    for text in (every_query()["sessions/approval_events"], index):
        listed = set(re.findall(r"'((?:approval|effect)_\w+)'", text))
        assert listed >= INBOX


def test_sql_appends_only_types_that_are_known() -> None:
    appended = {
        name
        for path in (SQL / "functions").glob("*.sql")
        for call in re.findall(r"sessions?_append\((.*?)\);", path.read_text(), re.DOTALL)
        for name in re.findall(r"'([a-z_]+)'", call)
    }
    assert appended
    assert appended <= set(EventType), appended - set(EventType)


def test_whoever_appends_events_gives_a_hint() -> None:
    """The hot verbs that append, themselves or through another function, are those that are followed by a hint."""
    bodies: dict[str, str] = {}
    for path in (SQL / "functions").glob("*.sql"):
        text = re.sub(r"^drop function .*$", "", path.read_text(), flags=re.MULTILINE)
        for function in text.split("create or replace function ")[1:]:
            name, _, bodies[name] = function.partition("(")
    telling = {"session_append", *(name for name, body in bodies.items() if "insert into event " in body)}
    while True:
        more = {n for n, body in bodies.items() if any(re.search(rf"\b{t}\(", body) for t in telling)} - telling
        if not more:
            break
        telling |= more
    called = {name for path in SOURCE.rglob("*.py") for name in re.findall(r'\.call\(\s*"(\w+)"', path.read_text())}
    assert called & telling == set(EVENT_VERBS)
