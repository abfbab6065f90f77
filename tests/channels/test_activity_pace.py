"""How often it is shown that an agent works."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.channels.activity_pace import PAUSE_SECONDS, ActivityPace

ONE, TWO = UUID(int=1), UUID(int=2)


class Watch:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def pace(watch: Watch) -> ActivityPace:
    return ActivityPace(chat_seconds=5, per_second=2, clock=watch)


def test_chat_sees_it_again_when_the_vendor_has_taken_it_away() -> None:
    shown = pace(watch := Watch())
    assert shown.take(ONE, "bea")
    watch.now += 4.9
    assert not shown.take(ONE, "bea")
    watch.now += 0.2
    assert shown.take(ONE, "bea")


def test_connection_shows_no_more_a_second_than_its_limit() -> None:
    shown = pace(watch := Watch())
    assert [shown.take(ONE, chat) for chat in "abc"] == [True, True, False]
    assert shown.take(TWO, "c"), "another connection has a limit of its own"
    watch.now += 1
    assert shown.take(ONE, "c")


def test_vendor_that_wants_a_pause_gets_it() -> None:
    shown = pace(watch := Watch())
    shown.pause(ONE, 7)
    assert not shown.take(ONE, "a")
    assert shown.take(TWO, "a")
    watch.now += 7
    assert shown.take(ONE, "a")
    shown.pause(ONE, None)
    watch.now += PAUSE_SECONDS - 1
    assert not shown.take(ONE, "b")
