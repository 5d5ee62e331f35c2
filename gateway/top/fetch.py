"""A scrape over HTTP, of whoever answers: bounded in size and time."""

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
    if parts.scheme not in ("http", "https") or not parts.hostname or (parts.port or 1) < 1:
        raise ValueError(f"{shown(url)} is no address of HTTP")
    return urlunsplit(parts._replace(path=parts.path if parts.path not in ("", "/") else "/metrics", fragment=""))


def named(url: str) -> str:
    """An address as it is shown: without a user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


async def fetch(client: httpx.AsyncClient, url: str) -> Scrape:
    """The numbers of now. Raises Lost."""
    try:
        async with asyncio.timeout(_WITHIN_S):
            text = await _text(client, url)
            return await asyncio.to_thread(read, text, time.monotonic())
    except TimeoutError:
        raise Lost(f"no answer within {_WITHIN_S:g} s") from None
    except httpx.HTTPError as error:
        raise Lost(f"not reached: {error or type(error).__name__}") from None
    except NotMetrics as error:
        raise Lost(f"the answer is not to be read: {error}") from None


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
                raise NotMetrics(f"it is larger than {MAX_BYTES >> 20} MiB")
        return bytes(body)
