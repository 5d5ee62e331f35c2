"""Spans on their way to a collector: kept in a bounded queue, and sent by a thread of their own.

Invariant: nothing here makes a request wait. Spans for which there is no room, and those of a batch that could not be sent, are
dropped and counted; the log has one line where that begins and one where it ends.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import structlog

from gateway.observe.group import Group
from gateway.observe.series import Gauge, Total
from gateway.observe.spans import Span

_log = structlog.get_logger("interlock.tracing")

ROOM = 8192
BATCH = 128  # encoded in some 5 ms, in which the loop gets the interpreter no sooner
EVERY_S = 1.0
CLOSE_S = 1.5  # for what is left at the end, then as much again at the most for the connection
_CUT_S = 0.4

Send = Callable[[Sequence[Span]], str | None]
"""Sends spans, in a thread; gives why it could not, in few words. None: they are sent. What it raises counts as such a why."""


class Sender:
    """`send` may take long, and `close` ends it from another thread."""

    def __init__(self, send: Send, close: Callable[[], None], *, room: int = ROOM, every_s: float = EVERY_S) -> None:
        self._send = send
        self._close = close
        self._room = room
        self._every_s = every_s
        self._queue: deque[Span] = deque()
        self._wake = threading.Event()
        self._closing = self._cut = False
        self._failing = False
        self._made = self._full = 0  # counted by the loop alone
        self._sent = self._unsent = 0  # by the thread alone

    def put(self, spans: Sequence[Span]) -> None:
        """Takes the spans of one request, or none of them."""
        self._made += len(spans)
        if self._closing or len(self._queue) + len(spans) > self._room:
            self._full += len(spans)
            return
        self._queue.extend(spans)
        if len(self._queue) >= BATCH and not self._wake.is_set():
            self._wake.set()

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Sends while inside; at the end what is left, if that goes quickly."""
        thread = threading.Thread(target=self._run, name="spans", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._closing = True
            self._wake.set()
            await asyncio.shield(asyncio.to_thread(self._end, thread))

    def counts(self) -> tuple[int, int, int, int]:
        """How many were sent, found no room, were not taken, and wait."""
        return self._sent, self._full, self._unsent, self._made - self._sent - self._full - self._unsent

    def _end(self, thread: threading.Thread) -> None:
        thread.join(CLOSE_S)
        self._cut = True
        self._close()
        thread.join(_CUT_S)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._every_s)
            self._wake.clear()
            self._empty()
        self._empty()

    def _empty(self) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            try:
                why = self._send(batch)
            except Exception as error:  # whatever the packages behind it raise, the thread goes on
                why = type(error).__name__
            if why is None:
                self._sent += len(batch)
                self._works()
                continue
            self._unsent += len(batch)
            self._fails(why)
            if self._closing:  # nobody waits for one that is down
                self._unsent += len(self._queue)
                self._queue.clear()

    def _fails(self, why: str) -> None:
        if not (self._failing or self._cut):
            self._failing = True
            _log.warning("spans cannot be sent: they are dropped until they can; requests are served as before", why=why)

    def _works(self) -> None:
        if self._failing:
            self._failing = False
            _log.info("spans are sent again", dropped=self._full + self._unsent)


def counted(counts: Callable[[], tuple[int, int, int, int]] = lambda: (0, 0, 0, 0)) -> Group:
    """What `Sender.counts` says, as metrics; all at zero where nothing is traced."""
    waiting = Gauge("interlock_spans_waiting", "Spans that are to be sent.", (), lambda: [((), counts()[3])])
    sent = Total("interlock_spans_sent_total", "Spans that the collector took.", (), lambda: [((), counts()[0])])
    dropped = Total(
        "interlock_spans_dropped_total",
        "Spans that were not sent: there was no room for more (full), or the collector did not take them (unsent).",
        ("reason",),
        lambda: [(("full",), counts()[1]), (("unsent",), counts()[2])],
    )
    return Group("Traces", (waiting, sent, dropped))
