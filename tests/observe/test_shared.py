"""What is made beside the loop is made one at a time, and none is of a moment before it was asked for, or not long before."""

import asyncio
import threading
import time
from collections.abc import Callable

from gateway.observe.metrics import Written
from gateway.observe.shared import Shared

LONG_S = 0.5


class Source:
    """Counts what is copied and written; writing takes a while, without the interpreter."""

    def __init__(self, write_s: float = 0.0) -> None:
        self.now = 0
        self.copies = 0
        self.writing = 0
        self.most_writing = 0
        self.threads: set[int] = set()
        self._write_s = write_s

    def copied(self) -> Callable[[str], Written]:
        self.copies += 1
        self.threads.add(threading.get_ident())
        seen = self.now

        def write(accept: str) -> Written:
            assert threading.get_ident() not in self.threads
            self.writing += 1
            self.most_writing = max(self.most_writing, self.writing)
            time.sleep(self._write_s)
            self.writing -= 1
            return accept, str(seen).encode()

        return write


async def test_the_loop_goes_on_while_a_scrape_is_written() -> None:
    source = Source(LONG_S)
    scrape = asyncio.create_task(Shared(source.copied, "test")("x"))
    turns = 0
    while not scrape.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 20
    assert await scrape == ("x", b"0")


async def test_scrapes_that_come_meanwhile_share_the_next_and_see_what_was_when_they_asked() -> None:
    source = Source(0.1)
    scrapes = Shared(source.copied, "test")
    first = asyncio.create_task(scrapes("x"))
    await asyncio.sleep(0.02)
    source.now = 1
    later = await asyncio.gather(*(scrapes("x") for _ in range(5)))
    assert await first == ("x", b"0")
    assert later == [("x", b"1")] * 5
    assert source.copies == 2
    source.now = 2
    assert await scrapes("x") == ("x", b"2")
    assert source.most_writing == 1


async def test_each_scraper_is_given_the_format_that_it_takes() -> None:
    scrapes = Shared(Source(0.02).copied, "test")
    answers = await asyncio.gather(*(scrapes(accept) for accept in ("x", "y", "x", "y")))
    assert [kind for kind, _ in answers] == ["x", "y", "x", "y"]


async def test_one_that_is_given_up_is_still_the_only_one_that_is_written() -> None:
    source = Source(0.1)
    scrapes = Shared(source.copied, "test")
    first = asyncio.create_task(scrapes("x"))
    await asyncio.sleep(0.02)
    first.cancel()
    assert await scrapes("x") == ("x", b"0")
    assert source.most_writing == 1


async def test_what_was_copied_a_moment_ago_is_given_again_where_that_is_wanted() -> None:
    source = Source(0.02)
    lately = Shared(source.copied, "test", old_s=60.0)
    assert await asyncio.gather(*(lately("x") for _ in range(5))) == [("x", b"0")] * 5
    source.now = 1
    assert await lately("x") == ("x", b"0")
    assert source.copies == 1


async def test_its_age_is_that_of_its_numbers_not_of_its_text() -> None:
    source = Source(0.1)
    lately = Shared(source.copied, "test", old_s=0.05)
    await lately("x")
    source.now = 1
    assert await lately("x") == ("x", b"1")
