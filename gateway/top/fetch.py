"""Scrapes over HTTP, of whoever answers: bounded in size and time.

Invariant: whatever answers, or nothing does, a scrape or `Lost`; no two answers are read at once, also where one takes so long
that nobody waits for it any more.
"""

import asyncio
import time
from urllib.parse import urlsplit, urlunsplit

import httpx

from gateway.errors import shown
from gateway.top.scrape import MAX_BYTES, NotMetrics, Scrape, read

_WITHIN_S = 5.0


class Lost(Exception):
    """No scrape came. The message says why, in one line."""


def metrics_url(url: str) -> str:
    """Where the metrics are: the address given, with `/metrics` where it names no path. Raises ValueError."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    whole = urlunsplit(parts._replace(path=parts.path if parts.path not in ("", "/") else "/metrics", fragment=""))
    if parts.scheme not in ("http", "https") or (parts.port or 1) < 1 or not _has_host(whole):
        raise ValueError(f"{shown(url)} is no address of HTTP")
    return whole


def named(url: str) -> str:
    """An address as it is shown: without a user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


class Scraper:
    """Asks one address, with `client`."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url
        self._reading: asyncio.Future[Scrape | NotMetrics] | None = None

    async def __call__(self) -> Scrape:
        """The numbers of now. Raises Lost."""
        if self._reading is not None and not self._reading.done():  # a thread cannot be ended
            raise Lost("the answer before is still being read")
        try:
            async with asyncio.timeout(_WITHIN_S):
                text = await _text(self._client, self._url)
                self._reading = asyncio.ensure_future(asyncio.to_thread(_read, text, time.monotonic()))
                found = await asyncio.shield(self._reading)
        except TimeoutError:
            raise Lost(f"no answer within {_WITHIN_S:g} s") from None
        except (httpx.HTTPError, UnicodeError) as error:  # a name with a part too long for any resolver is the latter
            raise Lost(f"not reached: {str(error) or type(error).__name__}") from None
        if isinstance(found, NotMetrics):
            raise Lost(f"the answer is not to be read: {found}")
        return found


async def _text(client: httpx.AsyncClient, url: str) -> bytes:
    async with client.stream("GET", url, headers={"accept": "text/plain", "accept-encoding": "identity"}) as answer:
        if answer.status_code != 200:
            raise Lost(f"the answer has the status {answer.status_code}")
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise Lost("the answer is compressed, which was not asked for")
        body = bytearray()
        async for piece in answer.aiter_raw():
            body += piece
            if len(body) > MAX_BYTES:
                raise Lost(f"the answer is not to be read: it is larger than {MAX_BYTES >> 20} MiB")
        return bytes(body)


def _read(text: bytes, at_s: float) -> Scrape | NotMetrics:
    """What an answer says, or why it is none, as a value: nobody may be there to catch it."""
    try:
        return read(text, at_s)
    except NotMetrics as error:
        return error


def _has_host(url: str) -> bool:
    try:
        return bool(httpx.URL(url).host)
    except (httpx.InvalidURL, UnicodeError):
        return False
