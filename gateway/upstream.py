"""The HTTP client shell: a call to an engine goes out, its answer's bytes come in, and every failure is one of ours.

It is the only place on the data path that knows the HTTP library. Bodies are read as they come, with the socket paused while
nobody reads, so that a slow client slows its engine and nothing piles up between them.

A kept connection may be closed by the engine just as the next call goes out on it (llama.cpp closes after each stream, whatever
its headers say). Such a call, of whose answer nothing has come, is sent once more, on a connection made for it; what fails there
has failed. So an engine that dies of a request gets it twice at the most; one that cannot be reached any more then counts as
gone, not as unreachable.

Invariant: a connection is used again only after `release`, and only where nothing came after the answer's end.
"""

import asyncio
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from types import TracebackType
from typing import Self

import aiohttp
import structlog
from aiohttp.client_proto import ResponseHandler
from aiohttp.tracing import Trace
from yarl import URL

from engines.base import Call
from gateway.apart import Names
from gateway.errors import EngineGone, EngineTimeout, EngineUnreachable

_log = structlog.get_logger("interlock.upstream")

_READ_BUFFER_BYTES = 64 * 1024
_KEEPALIVE_S = 4  # the engines' servers drop an idle connection after 5 s: leave it before, rather than race with it
_LARGE_BODY_BYTES = 512 * 1024  # from here on the body is sent in pieces, so that one send does not hold the loop
_ERROR_BODY_BYTES = 64 * 1024
_RELEASE_S = 0.25
_MAX_WAIT_S = 86_400
_STOOD_STILL = 0.1  # the share of the time for a connection that the loop may stand still


_MADE: ContextVar[bool] = ContextVar("made")
"""Whether a connection was made for this task's call, which did not go out on a kept one."""


class _Pool(aiohttp.TCPConnector):
    """Connections that are kept. The library's own way to tell of them, its traces, is a quarter of what a call costs."""

    async def _create_connection(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        _MADE.set(True)
        return await super()._create_connection(req, traces, timeout)


class _Response(aiohttp.ClientResponse):
    """An answer that keeps its connection until it is released or closed: the library gives it back as soon as the body has
    ended, which is before anybody could see what the body ends with."""

    def _response_eof(self) -> None:
        """The body has ended."""


class Exchange:
    """An answer whose headers have come. Read it to its end, then `release` it; `close` drops the connection. `overrun` is set by
    who read of it what comes after the answer's end."""

    def __init__(self, response: aiohttp.ClientResponse, ending: "set[asyncio.Task[None]]") -> None:
        self._response = response
        self._ending = ending
        self.overrun = False
        self.status = response.status
        self.content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def retry_after_s(self) -> float | None:
        """What the engine's Retry-After says, in seconds; None where it says nothing that can be read."""
        return retry_after_s(self._response.headers.get("retry-after", ""), datetime.now(UTC))

    async def read(self) -> bytes:
        """The next bytes, or b"" at the end. Raises EngineGone where the connection broke."""
        with _translated(0.0):
            return await self._response.content.readany()

    async def read_error(self) -> bytes:
        """The body of an error answer, up to 64 KiB."""
        return await self.read_up_to(_ERROR_BODY_BYTES)

    async def read_up_to(self, limit_bytes: int) -> bytes:
        """The rest of the body, or its first bytes."""
        with _translated(0.0):
            return await _up_to(limit_bytes, self._response.content)

    def release(self) -> None:
        """Gives the connection back for the next call, where the body ends soon and with nothing more in it than white space;
        else closes it. The client waits for neither."""
        if self.overrun:
            self._drop()
            return
        if self._response.content.at_eof():
            self._response.release()
            return
        task = asyncio.create_task(self._end())
        self._ending.add(task)
        task.add_done_callback(self._ended)

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(_RELEASE_S):
                while data := await self._response.content.readany():
                    if data.strip():
                        self._drop()
                        return
            self._response.release()
        except (TimeoutError, aiohttp.ClientError, OSError):
            self._response.close()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Also of a task that was cancelled before it ran. Where the connection was given back there is nothing to close."""
        self._ending.discard(task)
        self._response.close()

    def _drop(self) -> None:
        """What comes after an answer could be taken for the next one."""
        _log.debug("connection closed: the engine went on after its answer", engine_url=str(self._response.url.origin()))
        self._response.close()

    def close(self) -> None:
        """Drops the connection, so that the engine sees at once that nobody listens."""
        self._response.close()


class Upstream:
    """A pool of connections to engines. Use as `async with Upstream() as upstream`. `stood_s` tells how long the loop has stood
    still until now."""

    def __init__(self, stood_s: Callable[[], float] = lambda: 0.0) -> None:
        self._stood_s = stood_s

    async def __aenter__(self) -> Self:
        self._ending: set[asyncio.Task[None]] = set()
        # No limit: a call never waits for another's connection, and a probe for none.
        self._names = Names()
        self._session = _session(_Pool(resolver=self._names, limit=0, keepalive_timeout=_KEEPALIVE_S))
        self._once = _session(aiohttp.TCPConnector(resolver=self._names, limit=0, force_close=True))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for task in self._ending:
            task.cancel()
        await self._session.close()
        await self._once.close()
        await self._names.close()

    async def open(self, url: URL, call: Call, *, api_key: str | None, connect_s: float) -> Exchange:
        """Sends the call and waits for the headers. Redirects are not followed. Raises an EngineError."""
        headers = {"content-type": "application/json", **call.headers}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        with _translated(connect_s):
            return await self._exchange("POST", url, headers, call.body, connect_s)

    async def get(self, url: URL, *, api_key: str | None, limit_s: float, max_bytes: int = 1 << 20) -> tuple[int, bytes]:
        """A small GET for probes: status and at most `max_bytes` of the body. Raises an EngineError."""
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        with _translated(limit_s):
            async with asyncio.timeout(limit_s):
                return await _answer(await self._exchange("GET", url, headers, None, limit_s), max_bytes)

    async def post(
        self, url: URL, call: Call, *, api_key: str | None, limit_s: float, max_bytes: int = 1 << 20
    ) -> tuple[int, bytes]:
        """As `get`, for a call that is no request to generate."""
        with _translated(limit_s):
            async with asyncio.timeout(limit_s):
                return await _answer(await self.open(url, call, api_key=api_key, connect_s=limit_s), max_bytes)

    async def _exchange(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None, connect_s: float
    ) -> Exchange:
        """Sends it and waits for the headers: on a kept connection, where there is one, and on a new one where that had ended."""
        try:
            response = await self._sent(self._session, method, url, headers, body, connect_s=connect_s)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if _MADE.get() or _begun(error):
                raise
            try:
                response = await self._sent(self._once, method, url, headers, body, connect_s=connect_s)
            except aiohttp.ConnectionTimeoutError:
                raise
            except aiohttp.ClientConnectorError:  # it may have died of this very call
                raise EngineGone("The engine closed the connection, and took no other.") from None
        return Exchange(response, self._ending)

    async def _sent(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        connect_s: float,
    ) -> aiohttp.ClientResponse:
        """A connection that took too long while the loop stood still is tried once more: the engine may have taken it in time."""
        send = partial(_sent, session, method, url, headers, body, connect_s=connect_s)
        stood_s = self._stood_s()
        try:
            return await send()
        except aiohttp.ConnectionTimeoutError:
            if self._stood_s() - stood_s < connect_s * _STOOD_STILL:
                raise
        return await send()


def _begun(error: aiohttp.ServerDisconnectedError | aiohttp.ClientOSError) -> bool:
    """Whether the connection ended amid the answer's headers, which the library has then read in part."""
    return isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        response_class=_Response,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        trust_env=False,
        read_bufsize=_READ_BUFFER_BYTES,
        skip_auto_headers=("accept-encoding", "user-agent"),
    )


async def _sent(
    session: aiohttp.ClientSession,
    method: str,
    url: URL,
    headers: Mapping[str, str],
    body: bytes | None,
    *,
    connect_s: float,
) -> aiohttp.ClientResponse:
    _MADE.set(False)
    return await session.request(
        method,
        url,
        data=io.BytesIO(body) if body is not None and len(body) >= _LARGE_BODY_BYTES else body,
        headers=headers,
        allow_redirects=False,
        timeout=aiohttp.ClientTimeout(total=None, connect=connect_s, sock_connect=connect_s),  # `connect` is its name's time too
    )


async def _answer(exchange: Exchange, max_bytes: int) -> tuple[int, bytes]:
    """All of a small answer, or its first bytes, whose connection is not kept."""
    whole = False
    try:
        body = await exchange.read_up_to(max_bytes)
        whole = len(body) < max_bytes
        return exchange.status, body
    finally:
        if whole:
            exchange.release()
        else:
            exchange.close()


def retry_after_s(value: str, now: datetime) -> float | None:
    """The seconds of a Retry-After header, which has a number of them or a date (RFC 9110, 10.2.3); at most a day."""
    if value.isascii() and value.isdigit():
        return float(min(int(value[:6]), _MAX_WAIT_S))
    try:
        wait_s = (parsedate_to_datetime(value) - now).total_seconds()
    except (TypeError, ValueError):
        return None
    return min(max(wait_s, 0.0), _MAX_WAIT_S)


async def _up_to(limit: int, content: aiohttp.StreamReader) -> bytes:
    """The body, or its first `limit` bytes: a single read gives no more than has come."""
    body = bytearray()
    while len(body) < limit and (piece := await content.read(limit - len(body))):
        body += piece
    return bytes(body)


@contextmanager
def _translated(limit_s: float) -> Iterator[None]:
    """Turns the library's exceptions into ours. `limit_s` is what the connection may take, and of a probe all of it. The messages
    name no address: they reach clients."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError:
        raise EngineTimeout("connect", limit_s) from None
    except aiohttp.ClientConnectorError:
        raise EngineUnreachable("No connection to the engine could be made.") from None
    except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError):
        raise EngineGone("The engine closed the connection before its answer was complete.") from None
    except TimeoutError:
        raise EngineTimeout("headers", limit_s) from None
