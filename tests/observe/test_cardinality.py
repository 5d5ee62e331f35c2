"""Whatever clients send, the number of series stays: names, tenants, paths and user agents at random make none."""

import asyncio
import random
import string
from collections.abc import Iterator
from typing import Any

import httpx
from msgspec.structs import replace
from support.events import DONE, MADE
from support.gateway import Served, scripted, tiny_model

from gateway.events import AttemptFailed, AttemptStarted, CacheTold, Finished, NotRetried, Prefilled
from gateway.routing.view import Forecast, Terms
from gateway.wire.jsonio import encode

REQUESTS, BY_SOCKET, BY_APP = 100_000, 500, 9_500
AT_ONCE = 50
MOST_NEW = 20
PATH = "/v1/chat/completions"
EXPECTED = Forecast(100, 60, 0.2, Terms(prefill_s=0.2), unit_tokens=4.0)


class Clients:
    """Clients that are never the same."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def word(self) -> str:
        """Of any characters, as of other models and of attackers."""
        kind = self._random.choice((string.ascii_letters, string.printable, "äß\u2028日本\U0001f600", '{}"\\\n,='))
        return "".join(self._random.choices(kind, k=self._random.randint(1, 40)))

    def asks(self) -> tuple[str, dict[str, str], bytes]:
        """Path, headers and body."""
        path = self._random.choices((PATH, f"/{self.name()}", f"/v1/{self.name()}"), (8, 1, 1))[0]
        headers = {
            "user-agent": self.name(),
            "authorization": f"Bearer {self.name()}",
            "x-tenant": self.name(),
            "x-session-id": self.name(),
            "traceparent": f"00-{self._random.getrandbits(128):032x}-{self._random.getrandbits(64):016x}-01",
        }
        body: dict[str, Any] = {
            "model": self._random.choice((self.word(), self.word(), "m", "other", "unknown", "none")),
            "messages": self._random.choice(([], [{"role": self.word(), "content": "x"}], self.word())),
            "user": self.word(),
            "tools": [{"type": "function", "function": {"name": self.name()}}] if self._random.random() < 0.3 else [],
            self.name(): self.word(),
        }
        return path, headers, self._random.choice((encode(body), encode(body), encode(body), encode(self.word())))

    def name(self) -> str:
        """Of characters that a header and a path can have."""
        return "".join(self._random.choices(string.ascii_letters + string.digits, k=self._random.randint(1, 30)))


async def by_socket(served: Served, clients: Clients) -> None:
    async def some() -> None:
        for _ in range(BY_SOCKET // AT_ONCE):
            path, headers, body = clients.asks()
            answer = await client.post(path, headers=headers, content=body)
            assert answer.status_code >= 400

    async with httpx.AsyncClient(base_url=served.url, timeout=60, trust_env=False) as client:
        await asyncio.gather(*(some() for _ in range(AT_ONCE)))


async def by_app(served: Served, clients: Clients) -> None:
    """The whole application, without a socket."""
    for _ in range(BY_APP):
        path, headers, body = clients.asks()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        said: list[Any] = []
        messages: Iterator[Any] = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive(messages: Iterator[Any] = messages) -> Any:
            return next(messages, None) or {"type": "http.disconnect"}

        async def send(message: Any, said: list[Any] = said) -> None:
            said.append(message)

        await served.gateway.main(scope, receive, send)
        assert said[0]["status"] >= 400


def by_events(served: Served, clients: Clients, count: int) -> None:
    """What all parts of a gateway could say of requests, were they to believe their clients and engines."""
    metrics = served.gateway.metrics
    for number in range(count):
        word, other = f"?{clients.word()}", f"?{clients.word()}"  # no name of the settings
        model = ("m", "unknown", other)[number % 3]
        metrics(AttemptStarted(word, 1, engine=word, model=model, at_s=0.0, why=word))
        metrics(Prefilled(word, 1, word, model, 0.1, EXPECTED))
        metrics(CacheTold(word, 1, word, model, 50, EXPECTED))
        metrics(AttemptFailed(word, 1, engine=word, reason="broke", model=model))
        metrics(NotRetried(word, 1, why=word, model=model))
        metrics(replace(MADE, request_id=word, model=model, engine=word, format=word))
        metrics(finished(word, model))
        metrics.engine_info(word, "vllm", "1", word)


def finished(word: str, model: str) -> Finished:
    said: dict[str, Any] = dict.fromkeys(("request_id", "engine", "format", "dialect", "session", "trace_id"), word)
    return replace(DONE, model=model, outcome="client_error", reason="broke", **said)


async def series(served: Served) -> set[str]:
    return set(await served.metrics())


async def test_a_hundred_thousand_different_requests_add_next_to_no_series() -> None:
    clients = Clients(8)
    async with scripted(aliases=["other"], source=str(tiny_model())) as (_, served):
        assert (await served.chat()).status_code == 200
        assert (await served.chat(messages=[])).status_code == 400
        before = await series(served)
        await by_socket(served, clients)
        await by_app(served, clients)
        after = await series(served)
        assert len(after - before) <= MOST_NEW, sorted(after - before)
        by_events(served, clients, 3)  # an engine that is not known is one set of series: `other`
        known = await series(served)
        by_events(served, clients, REQUESTS - BY_SOCKET - BY_APP - 3)
        assert await series(served) == known
