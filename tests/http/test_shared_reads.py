"""Shared reads: no caller gets an answer that was read before they asked."""

from __future__ import annotations

import asyncio

import pytest

from cortex_plane.tenancy.verbs.frame import SharedReads


class Source:
    """Every read ends when it is let go, with its number or an error."""

    def __init__(self) -> None:
        self.reads: list[asyncio.Future[None]] = []

    async def read(self) -> int:
        self.reads.append(asyncio.get_running_loop().create_future())
        number = len(self.reads)
        await self.reads[-1]
        return number

    async def end(self, error: Exception | None = None) -> None:
        """The read that is under way, and all that follows from it."""
        if error is None:
            self.reads[-1].set_result(None)
        else:
            self.reads[-1].set_exception(error)
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
def source() -> Source:
    return Source()


async def ask(shared: SharedReads[str, int], source: Source, key: str = "a") -> asyncio.Task[int]:
    task = asyncio.ensure_future(shared.run(key, source.read))
    await asyncio.sleep(0)
    return task


async def test_callers_during_a_read_share_the_next_one(source: Source) -> None:
    shared = SharedReads[str, int]()
    first = await ask(shared, source)
    others = [await ask(shared, source) for _ in range(3)]
    assert len(source.reads) == 1
    await source.end()
    assert first.result() == 1
    later = await ask(shared, source)
    assert len(source.reads) == 2
    await source.end()
    assert [task.result() for task in others] == [2, 2, 2]
    await source.end()
    assert later.result() == 3
    last = await ask(shared, source)
    await source.end()
    assert last.result() == 4


async def test_other_keys_do_not_wait(source: Source) -> None:
    shared = SharedReads[str, int]()
    await ask(shared, source)
    await ask(shared, source, "b")
    assert len(source.reads) == 2
    for read in source.reads:
        read.set_result(None)


async def test_error_reaches_all_callers_and_the_next_one_reads_again(source: Source) -> None:
    shared = SharedReads[str, int]()
    first = await ask(shared, source)
    others = [await ask(shared, source) for _ in range(2)]
    await source.end(KeyError("first"))
    await source.end(ValueError("second"))
    with pytest.raises(KeyError):
        await first
    for task in others:
        with pytest.raises(ValueError, match="second"):
            await task
    last = await ask(shared, source)
    await source.end()
    assert last.result() == 3


async def test_cancelled_caller_cancels_no_other(source: Source) -> None:
    shared = SharedReads[str, int]()
    first = await ask(shared, source)
    leaving, staying = await ask(shared, source), await ask(shared, source)
    leaving.cancel()
    first.cancel()
    await asyncio.gather(first, leaving, return_exceptions=True)
    assert len(source.reads) == 2
    await source.end()
    assert staying.result() == 2
