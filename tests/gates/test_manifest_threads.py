"""Atlases are read and compiled a few at a time, and whoever comes when too many wait is told so."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cortex_plane.kernel.errors import Unavailable
from cortex_plane.kernel.shares import Turns


class Slow:
    """Work that goes on until it is let go, and knows how many did so at once."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.now = self.most = 0

    def __call__(self, number: int) -> int:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.begun.release()
        assert self.go.wait(60)
        with self.lock:
            self.now -= 1
        return number


@pytest.mark.proves("D.332")
async def test_so_many_run_at_a_time_and_everything_else_goes_on() -> None:
    turns, slow = Turns(2), Slow()
    running = [asyncio.create_task(turns.run(slow, number)) for number in range(40)]
    for _ in range(2):
        assert await asyncio.to_thread(slow.begun.acquire, timeout=60)
    # All others wait without a thread: whoever needs one has it at once.
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "here"), 60) == "here"
    slow.go.set()
    assert await asyncio.gather(*running) == list(range(40))
    assert slow.most == 2


@pytest.mark.proves("D.332")
async def test_beyond_so_many_they_are_sent_away_and_let_in_again() -> None:
    turns, slow = Turns(1, most=3), Slow()
    running = [asyncio.create_task(turns.run(slow, number)) for number in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable) as busy:
        await turns.run(slow, 4)
    assert busy.value.code == "atlases_busy"
    slow.go.set()
    assert await asyncio.gather(*running) == [0, 1, 2]
    assert await turns.run(slow, 5) == 5


@pytest.mark.proves("D.332")
async def test_a_caller_that_leaves_takes_no_turn_with_it() -> None:
    turns, slow = Turns(2), Slow()
    left = [asyncio.create_task(turns.run(slow, number)) for number in range(2)]
    for _ in left:
        assert await asyncio.to_thread(slow.begun.acquire, timeout=60)
    later = [asyncio.create_task(turns.run(slow, number)) for number in range(2, 4)]
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    # The turns are given back by the threads: whoever waits for one does not run beside them.
    assert not await asyncio.to_thread(slow.begun.acquire, timeout=0.05)
    slow.go.set()
    assert await asyncio.gather(*later) == [2, 3]
    assert slow.most == 2


def test_another_loop_has_turns_of_its_own() -> None:
    turns, slow = Turns(1), Slow()
    slow.go.set()

    async def several() -> list[int]:
        return await asyncio.gather(*(turns.run(slow, number) for number in range(3)))

    assert [asyncio.run(several()) for _ in range(2)] == [[0, 1, 2]] * 2
