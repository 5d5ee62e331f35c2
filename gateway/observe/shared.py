"""What is made of the numbers of now, beside the event loop: scrapes of the metrics, and the operator's page.

The numbers are copied on the loop, so that they are of one moment; the text, which takes far longer, is made in a thread of its
own, one at a time. Those who come meanwhile share the next one.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

_For = TypeVar("_For")
_Made = TypeVar("_Made")


class Shared(Generic[_For, _Made]):
    """`copied` takes the numbers of now and gives what makes the text of them, for whom it is. `name` is the thread's. What was
    copied within the last `old_s` seconds of the loop's clock is given again."""

    def __init__(self, copied: Callable[[], Callable[[_For], _Made]], name: str, *, old_s: float = 0.0) -> None:
        self._copied = copied
        self._old_s = old_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)  # names that do not resolve hold the loop's own
        self._lock = asyncio.Lock()
        self._begun = 0
        self._latest: dict[_For, tuple[int, float, _Made]] = {}  # for whom: which one, of when, and what was made

    async def __call__(self, whom: _For) -> _Made:
        """What is made for this. It is never of a moment longer than `old_s` before it was asked for."""
        loop, asked = asyncio.get_running_loop(), self._begun
        async with self._lock:
            if whom in self._latest:
                number, at_s, made = self._latest[whom]
                if number > asked or loop.time() - at_s < self._old_s:
                    return made
            self._begun = number = self._begun + 1
            at_s, make = loop.time(), self._copied()
            made = await loop.run_in_executor(self._thread, make, whom)
            self._latest = {whom: (number, at_s, made)}
            return made
