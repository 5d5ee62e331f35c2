"""A thread that follows what one engine publishes by ZMQ, and asks for what it missed.

vLLM's protocol, which SGLang has too: a message is a topic, a number of 8 bytes and a batch; a request to the replay socket is
the number of the first batch that is wanted, and its answers are batches, with the topic or without it, until one whose number is
all ones. Invariant: the thread owns its sockets and the mirror, reads no more than a bounded number of messages before it hands
over what they say, holds a bounded number of bytes whoever publishes, and ends soon after `stop`.

What is new waits at the engine, which is made for that, but for a few messages: who reads slowly is not sent more, and what the
engine then drops is asked for. What was asked for comes at once, and what has no room is dropped without a word: it is read
first, and waits here. A message that is too large ends its connection, and ZMQ makes no other by itself.
"""

import contextlib
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from typing import Literal

import zmq
from zmq.utils.monitor import parse_monitor_message

from gateway.fleet.kv_mirror import Mirror, News, Reason
from gateway.wire.kv import MAX_MESSAGE_BYTES

Context = zmq.Context[zmq.Socket[bytes]]

_END = b"\xff" * 8
_MOST_BYTES = MAX_MESSAGE_BYTES  # of a part of a message: at a larger one the connection breaks off
_BROKEN_IN_A_ROW, _BROKEN_S = 3, 60.0  # connections that end, without a message, in so many seconds
_QUEUE = 16  # messages of one engine that wait for the thread
_REPLAY_QUEUE = 1000
_MOST_WAITING = 1 << 28  # bytes of a replay
_MESSAGE_BYTES = 256  # what one takes beside its own
_DRAIN, _DRAIN_BYTES = 64, 1 << 20  # that are read before what they say is handed over
_TRIES = 4
_MOST_REPLAYED = 1 << 20  # messages of one replay: engines keep fewer
_REPLAY_MS, _IDLE_MS = 5_000, 20
_AGAIN_S, _MOST_AGAIN_S, _CONNECT_S = 2.0, 60.0, 0.1


class ReplayFailed(Exception):
    """What was asked for did not come, or not all of it, or without an end, or more than can wait."""

    def __init__(self, reason: Literal["replay", "oversize"] = "replay") -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class Subscription:
    """`live` and `replay` are addresses; `bind`: the engine connects to `live`. `say` hands news over, from the thread; False: it
    cannot be taken now, and `idle` says when it can."""

    def __init__(
        self,
        context: Context,
        mirror: Mirror,
        live: str,
        replay: str | None,
        *,
        topic: str,
        bind: bool,
        say: Callable[[list[News]], bool],
        idle: Callable[[], bool],
    ) -> None:
        self._context = context
        self._mirror = mirror
        self._live = live
        self._replay = replay
        self._topic = topic
        self._bind = bind
        self._say = say
        self._idle = idle
        self._behind = False
        self._broken_s = deque[float](maxlen=_BROKEN_IN_A_ROW)  # when it last was, without a message since
        self._connect_s = math.inf
        self._again_s = math.inf
        self._pause_s = _AGAIN_S
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="interlock-kv", daemon=True)

    def start(self) -> None:
        """Follows from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Ends soon."""
        self._stop.close()

    def join(self, limit_s: float) -> bool:
        """Waits for the end; whether it came."""
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    @property
    def ended(self) -> bool:
        """Whether it follows no more."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        with self._stopped:
            try:
                with ExitStack() as stack:
                    self._follow(stack)
            except zmq.ZMQError:
                self._mirror.fail("socket")
                self._tell()

    def _follow(self, stack: ExitStack) -> None:
        follow = stack.enter_context(self._socket(zmq.SUB, _QUEUE))
        monitor = stack.enter_context(follow.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED))
        stack.callback(follow.disable_monitor)
        follow.setsockopt_string(zmq.SUBSCRIBE, self._topic)
        (follow.bind if self._bind else follow.connect)(self._live)
        poller = zmq.Poller()
        for each in (follow, monitor):
            poller.register(each, zmq.POLLIN)
        poller.register(self._stopped.fileno(), zmq.POLLIN)
        if self._replay is not None:
            self._catch_up()
        while True:
            self._tell()
            ready = dict(poller.poll(self._patience_ms()))
            if self._stopped.fileno() in ready:
                return
            if monitor in ready:
                self._connection(monitor)
            if follow in ready:
                self._read(follow)
            now_s = time.monotonic()
            if now_s >= self._connect_s:
                self._connect(follow)
            if now_s >= self._again_s:
                self._catch_up()

    def _socket(self, kind: int, queue: int) -> "zmq.Socket[bytes]":
        made = self._context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.RCVHWM, queue)
        made.setsockopt(zmq.MAXMSGSIZE, _MOST_BYTES)
        made.setsockopt(zmq.IPV6, 1)
        made.setsockopt(zmq.HEARTBEAT_IVL, 10_000)
        made.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30_000)
        made.setsockopt(zmq.RECONNECT_IVL_MAX, 5_000)
        return made

    def _patience_ms(self) -> int | None:
        if self._behind:
            return _IDLE_MS
        left_s = min(self._again_s, self._connect_s) - time.monotonic()
        return None if left_s == math.inf else math.ceil(max(left_s, 0.0) * 1000)

    def _tell(self) -> None:
        if self._behind:
            if not self._idle():
                return
            self._behind = False
            self._mirror.again()
        news = self._mirror.news()
        if news and not self._say(news):
            self._behind = True

    def _connection(self, monitor: "zmq.Socket[bytes]") -> None:
        """Another process may have come to the place of one that is gone; or a message was too large."""
        while monitor.poll(0):
            event = parse_monitor_message(monitor.recv_multipart())["event"]
            if event == zmq.EVENT_DISCONNECTED:
                self._broken_s.append(time.monotonic())
                if not self._bind:
                    self._connect_s = self._broken_s[-1] + _CONNECT_S
                if len(self._broken_s) == _BROKEN_IN_A_ROW and self._broken_s[-1] - self._broken_s[0] < _BROKEN_S:
                    self._mirror.fail("oversize")
                    self._mirror.expected = None
            elif self._replay is not None:
                self._catch_up()

    def _connect(self, follow: "zmq.Socket[bytes]") -> None:
        self._connect_s = math.inf
        with contextlib.suppress(zmq.ZMQError):  # it may be left already
            follow.disconnect(self._live)
        follow.connect(self._live)

    def _read(self, follow: "zmq.Socket[bytes]") -> None:
        size = 0
        for _ in range(_DRAIN):
            try:
                frames = follow.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._broken_s.clear()
            if (found := _numbered(frames)) is not None:
                self._take(*found)
            size += sum(map(len, frames))
            if size > _DRAIN_BYTES:
                return

    def _take(self, number: int, payload: bytes) -> None:
        mirror = self._mirror
        if self._again_s < math.inf:  # it is asked for again, with all that came since
            return
        match mirror.verdict(number, payload):
            case "next":
                if mirror.expected is None:
                    mirror.begin()
                mirror.take(number, payload)
            case "known":
                pass
            case "gap":
                self._missed(number, payload)
            case "anew" if self._replay is not None:
                mirror.another()
                self._catch_up()
            case "anew":
                mirror.another()
                self._take(number, payload)

    def _missed(self, number: int, payload: bytes) -> None:
        mirror = self._mirror
        if mirror.expected is not None:
            mirror.count_gap()
        if self._replay is not None and mirror.reason != "history":
            self._catch_up()
            return
        if mirror.complete or mirror.reason == "starting":
            mirror.fail("gap" if mirror.expected is not None else "history")
        mirror.skip_to(number)
        mirror.take(number, payload)

    def _catch_up(self) -> None:
        """Asks for all that is missing, from the batch before it on, which tells whether it is still the same process."""
        self._again_s = math.inf
        try:
            for _ in range(_TRIES):
                if self._asked():
                    self._pause_s = _AGAIN_S
                    return
            raise ReplayFailed
        except ReplayFailed as failed:
            self._mirror.fail(failed.reason)
            self._mirror.expected = None
            self._again_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _MOST_AGAIN_S)

    def _asked(self) -> bool:
        """Whether all came. Raises ReplayFailed where nothing does."""
        mirror = self._mirror
        if mirror.expected is None:
            mirror.begin()
        wanted = mirror.expected or 0
        first = True
        with closing(self._replayed(max(wanted - 1, 0))) as batches:
            for number, payload in batches:
                if first and number > wanted:  # it no longer has what would come first
                    mirror.fail("history")
                    mirror.skip_to(number)
                first = False
                match mirror.verdict(number, payload):
                    case "next":
                        mirror.take(number, payload)
                    case "known":
                        pass
                    case "gap":
                        return False
                    case "anew":
                        mirror.another()
                        return False
        if first and wanted:  # it has told less than was heard
            mirror.another()
            return False
        return True

    def _replayed(self, start: int) -> Generator[tuple[int, bytes], None, None]:
        with self._socket(zmq.DEALER, _REPLAY_QUEUE) as asking:
            asking.connect(self._replay or "")
            asking.send_multipart((b"", start.to_bytes(8, "big")))
            poller = zmq.Poller()
            poller.register(asking, zmq.POLLIN)
            poller.register(self._stopped.fileno(), zmq.POLLIN)
            waiting, size = deque[list[bytes]](), 0
            for _ in range(_MOST_REPLAYED):
                ready = dict(poller.poll(0 if waiting else _REPLAY_MS))
                if not (waiting or asking in ready) or self._stopped.fileno() in ready:  # one that sends for ever is left too
                    raise ReplayFailed
                while asking.poll(0):
                    waiting.append(asking.recv_multipart())
                    size += _size(waiting[-1])
                    if size > _MOST_WAITING:
                        raise ReplayFailed("oversize")
                frames = waiting.popleft()
                size -= _size(frames)
                if len(frames) < 2 or frames[-2] == _END:
                    return
                if (found := _numbered(frames)) is not None:
                    yield found
            raise ReplayFailed


def _size(frames: list[bytes]) -> int:
    return _MESSAGE_BYTES + sum(map(len, frames))


def _numbered(frames: list[bytes]) -> tuple[int, bytes] | None:
    """A batch and its number, of the last two frames; None of a message that is none."""
    if len(frames) < 2 or len(frames[-2]) != 8:
        return None
    return int.from_bytes(frames[-2], "big"), frames[-1]
