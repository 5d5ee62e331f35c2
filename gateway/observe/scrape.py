"""Scrapes of the metrics, beside the event loop.

The numbers are copied on the loop, so that they are of one moment; the text, which takes far longer, is made in a thread of its
own, one at a time. Scrapes that come meanwhile share the next one.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gateway.observe.metrics import Written


class Scrapes:
    """`copied` takes the numbers of now and gives what writes them for an `Accept` header."""

    def __init__(self, copied: Callable[[], Callable[[str], Written]]) -> None:
        self._copied = copied
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")  # names that do not resolve hold the loop's own
        self._lock = asyncio.Lock()
        self._begun = 0
        self._latest: dict[str, tuple[int, Written]] = {}  # by what was accepted: which scrape, and what it gave

    async def __call__(self, accept: str) -> Written:
        """What a scraper that accepts this is given. It is never of a moment before it asked."""
        asked = self._begun
        async with self._lock:
            number, written = self._latest.get(accept, (0, None))
            if written is not None and number > asked:
                return written
            self._begun = number = self._begun + 1
            written = await asyncio.get_running_loop().run_in_executor(self._thread, self._copied(), accept)
            self._latest = {accept: (number, written)}
            return written
