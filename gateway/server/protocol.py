"""uvicorn's HTTP protocol with a bound on what comes before a body: it has none of its own.

Invariant: a connection whose request line and headers pass `MAX_HEAD_BYTES` is answered with 431 and closed, complete or not.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.wire.jsonio import encode

MAX_HEAD_BYTES = 64 * 1024
_BODY = encode(
    {
        "error": {
            "message": f"The request's headers are larger than {MAX_HEAD_BYTES} bytes.",
            "type": "invalid_request_error",
            "param": None,
            "code": "headers_too_large",
        }
    }
)
_ANSWER = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


class HeadTooLarge(Exception):
    """Ends the parser's work on this connection."""


class Shared(ServerState):
    """What the connections of one server share. `last`: each answer from now on is the last of its connection."""

    last = False


class BoundedHttp(HttpToolsProtocol):
    """One connection. `_head_bytes` counts the head that is being read; `_told` is whether the parser said anything of the bytes
    that came last."""

    _head_bytes = 0
    _in_head = True
    _told = False

    def on_message_begin(self) -> None:
        """A head begins."""
        self._told = self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. Raising here makes the parser give up, which `send_400_response` answers."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is read."""
        self._told, self._in_head = True, False
        super().on_headers_complete()
        if isinstance(self.server_state, Shared) and self.server_state.last:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """What follows is another head, however little of it the parser shows."""
        self._told = self._in_head = True
        self._head_bytes = 0
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Counts also what the parser keeps to itself: a line that does not end."""
        self._told = False
        super().data_received(data)
        if self._in_head and not self._told and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("")

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is kept of it: uvicorn leaves the timer of a connection that was reset, and with it all of its last request."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def last_answer(self) -> None:
        """The answer that is being given, if one is, ends the connection."""
        if not self.idle:
            self.cycle.keep_alive = False

    @property
    def idle(self) -> bool:
        """Whether no request of this connection is being answered, and it is not closing."""
        return (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()

    def send_400_response(self, msg: str) -> None:
        """What cannot be read is answered by uvicorn, what is too large by us."""
        if self._head_bytes <= MAX_HEAD_BYTES:
            super().send_400_response(msg)
            return
        self.transport.write(_ANSWER)
        self.transport.close()

    def _count(self, size: int) -> None:
        self._told = True
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLarge
