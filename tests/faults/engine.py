"""An engine that fails on request, on a loopback socket: it speaks llama.cpp's `/completion` and vLLM's `/v1/completions`, over
the vocabulary of `support.vocabulary`, and records what it saw.

What it says is a pure function of the ids that it is given (`faults.saying`). Which fault a request meets (`faults.chaos`) its
prompt says, or an admin call: `POST /admin/mode {"mode": "500", "times": 3}`, `POST /admin/health {"healthy": "hang"}`,
`POST /admin/metrics {"answers": false}`, `POST /admin/down {"s": 5}`, `POST /admin/reset`; `GET /admin/seen` tells what it saw.
All of these answer on `admin_url` too, which stays up while the engine is down.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator
from email.utils import formatdate
from time import time
from typing import Any, Literal

from faults.chaos import BEFORE_HEADERS, NONE, STATUS, Fault, fault, marked
from faults.saying import text_of
from faults.speech import CONTEXT_TOKENS, Kind, speech
from faults.streaming import Seen, Streaming
from faults.wire import Connection, Request, head
from support.vocabulary import small_tokenizer

Health = bool | Literal["hang"]

GENERATES: dict[str, Kind] = {"/completion": "llamacpp", "/v1/completions": "vllm"}
BLOCK_TOKENS = 16
_START_S = 30.0
_STATUSES = {"context_length": 400, "oom_500": 500}


class FaultEngine:
    """One engine. `slots` bounds how many answers it makes at once, others wait inside it; `prefill_us` is what a token of a
    prompt costs that it has not seen before, `token_s` what each token of an answer does; vLLM's events hold up to `burst`
    tokens. The figures may be read at any time."""

    def __init__(
        self, name: str = "a", *, slots: int | None = None, prefill_us: float = 0.0, token_s: float = 0.0, burst: int = 1
    ) -> None:
        self.name = name
        self.url = self.admin_url = ""
        self.healthy: Health = True
        self.metrics: Health = True
        self._slots = asyncio.Semaphore(slots) if slots is not None else None
        self._prefill_us = prefill_us
        self._token_s = token_s
        self._burst = burst
        self._loop = asyncio.get_running_loop()
        self._port = 0
        self._server: asyncio.Server | None = None
        self._open: dict[Connection, asyncio.Task[None]] = {}
        self._admin_open: dict[Connection, asyncio.Task[None]] = {}
        self._numbers = itertools.count(1)
        self._rising: asyncio.Task[None] | None = None
        self.forget()

    def forget(self) -> None:
        """Begins anew: no fault, healthy, and nothing seen. What runs goes on."""
        self.healthy = self.metrics = True
        self.seen: list[Seen] = []
        self.odd: list[str] = []  # paths that no engine of these has
        self.dropped = 0  # requests that met the end of a connection
        self.accepted = 0
        self.running = self.waiting = self.most_running = 0
        self._asked: list[Fault] = []
        self._markers: dict[str, Fault] = {}
        self._known: set[int] = set()

    @property
    def connections(self) -> int:
        """Connections that stand now."""
        return len(self._open)

    def ask(self, mode: str, **given: str | float) -> None:
        """From now on requests meet this fault, where their prompt asks for none."""
        self._asked = [fault(mode, given)]

    @contextlib.asynccontextmanager
    async def working(self, port: int = 0, admin_port: int = 0) -> AsyncIterator["FaultEngine"]:
        """The engine, listening."""
        await self._listen(port)
        admin = await self._loop.create_server(lambda: self._connection(self._admin_open), "127.0.0.1", admin_port)
        self.admin_url = f"http://127.0.0.1:{admin.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            if self._rising is not None:
                self._rising.cancel()
            admin.close()
            await self._drop(self._admin_open)
            await self.fall()

    async def _listen(self, port: int) -> None:
        self._server = await self._loop.create_server(lambda: self._connection(self._open), "127.0.0.1", port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def fall(self) -> None:
        """The engine is gone: every connection is reset, the next is refused, and its cache is lost."""
        if self._server is not None:
            server, self._server = self._server, None
            self._loop.remove_reader(server.sockets[0].fileno())
            await asyncio.sleep(0)  # asyncio loses the connections that a server accepted just before it is closed
            server.close()
        self._known.clear()
        await self._drop(self._open)

    async def rise(self) -> None:
        """It is there again, at the same address."""
        if self._server is None:
            await self._listen(self._port)

    def down(self, for_s: float) -> None:
        """Falls now, and rises after this time."""
        self._rising = self._loop.create_task(self._down(for_s))

    async def _down(self, for_s: float) -> None:
        await self.fall()
        await asyncio.sleep(for_s)
        await self.rise()

    async def _drop(self, connections: dict[Connection, asyncio.Task[None]]) -> None:
        dropped = dict(connections)
        connections.clear()  # those that come from here on are others
        for connection, task in dropped.items():
            connection.reset()
            task.cancel()
        await asyncio.gather(*dropped.values(), return_exceptions=True)

    def _connection(self, standing: dict[Connection, asyncio.Task[None]]) -> Connection:
        def opened(connection: Connection) -> None:
            if standing is self._open and self._server is None:  # it was accepted while the engine fell
                connection.reset()
                return
            self.accepted += standing is self._open
            standing[connection] = self._loop.create_task(self._serve(connection, self.accepted))

        def lost(connection: Connection) -> None:
            standing.pop(connection, None)

        return Connection(opened, lost)

    async def _serve(self, connection: Connection, number: int) -> None:
        """Answers the requests of one connection."""
        with contextlib.suppress(ConnectionError):
            while (request := await connection.request()) is not None:
                if connection.doom is not None:
                    self.dropped += 1
                    if connection.doom == "rst":
                        connection.reset()
                    break
                if not await self._answer(connection, request, number):
                    break
        connection.close()

    async def _answer(self, connection: Connection, request: Request, number: int) -> bool:
        """One request; whether the connection can be used again."""
        path = request.path
        if path in GENERATES and request.method == "POST":
            return await self._generate(connection, request, number)
        if path.startswith("/admin/"):
            await connection.reply(200, self._administer(path, request.value or {}))
        elif path == "/health":
            if self.healthy == "hang":
                await connection.closed.wait()
                return False
            await connection.reply(200 if self.healthy else 503, {"status": "ok" if self.healthy else "error"})
        elif path in ("/metrics", "/slots"):
            if self.metrics == "hang":
                await connection.closed.wait()
                return False
            await self._tell_load(connection, path)
        elif path == "/tokenize":
            text = request.value.get("content", request.value.get("prompt"))
            await connection.reply(200, {"tokens": small_tokenizer().encode(text)})
        elif path in (told := self._told()):
            await connection.reply(200, told[path])
        else:
            self.odd.append(path)
            await connection.reply(404, {"error": {"code": 404, "message": "no such path", "type": "not_found_error"}})
        return True

    async def _tell_load(self, connection: Connection, path: str) -> None:
        status = 200 if self.metrics else 503
        if path == "/slots":
            await connection.reply(status, [{"id": number, "n_ctx": CONTEXT_TOKENS} for number in range(4)])
        else:
            await connection.reply(status, self.exposed(), content_type="text/plain; version=0.0.4")

    def _told(self) -> dict[str, object]:
        """What it says of itself, as each kind says it."""
        settings = {"n_ctx": CONTEXT_TOKENS}
        return {
            "/props": {"build_info": "fault-1", "model_alias": "m", "default_generation_settings": settings, "total_slots": 4},
            "/version": {"version": "0.0.fault"},
            "/v1/models": {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": CONTEXT_TOKENS}]},
        }

    def exposed(self) -> str:
        """Its metrics, under the names of both kinds."""
        used = min(1.0, len(self._known) / 4096)
        label = '{model_name="m"}'
        return (
            f"llamacpp:requests_processing {self.running}\nllamacpp:requests_deferred {self.waiting}\n"
            f"vllm:num_requests_running{label} {self.running}\nvllm:num_requests_waiting{label} {self.waiting}\n"
            f"vllm:kv_cache_usage_perc{label} {used}\n"
        )

    def _administer(self, path: str, wanted: Any) -> object:
        match path.removeprefix("/admin/"):
            case "mode":
                self.ask(**wanted)
            case "health":
                self.healthy = wanted["healthy"]
            case "metrics":
                self.metrics = wanted["answers"]
            case "down":
                self._loop.call_later(0.05, self.down, float(wanted.get("s", 1)))  # once this answer has gone
            case "reset":
                self.forget()
            case "seen":
                return self._record()
            case word:
                return {"error": f"no such call: {word}"}
        return {}

    def _record(self) -> dict[str, object]:
        figures = ("odd", "dropped", "accepted", "connections", "running", "waiting", "most_running")
        return {"requests": list(map(dataclasses.asdict, self.seen)), **{name: getattr(self, name) for name in figures}}

    async def _generate(self, connection: Connection, request: Request, number: int) -> bool:
        body, kind = request.value, GENERATES[request.path]
        chosen = self._fault_of(text_of(body["prompt"]))
        limit = body.get("n_predict" if kind == "llamacpp" else "max_tokens")
        seen = Seen(
            next(self._numbers), number, kind, chosen.mode, body["prompt"], limit, self._loop.time(), kept=connection.requests > 1
        )
        self.seen.append(seen)
        try:
            stays = await self._faulty(connection, request, seen, chosen)
            seen.how = "whole" if chosen.mode == NONE else "fault"
            return stays
        except ConnectionError:
            seen.how = "closed"
            raise
        finally:
            seen.ended_s = self._loop.time()
            seen.closed_s = connection.closed_s

    def _fault_of(self, text: str) -> Fault:
        """The fault of the next request, by what its prompt asks for, else by what an admin call did."""
        named = [self._markers.setdefault(marker, found) for marker, found in marked(text)]
        for each in [*named, *self._asked]:
            if each.given.get("only", self.name) == self.name and each.falls():
                return each
        return Fault()

    async def _faulty(self, connection: Connection, request: Request, seen: Seen, chosen: Fault) -> bool:
        """What comes before the headers, then the answer."""
        key = request.headers.get("authorization", "")
        if chosen.mode in STATUS:
            return await self._refuse(connection, request.value, seen, chosen, key)
        if chosen.mode in BEFORE_HEADERS and not await self._before_headers(connection, chosen):
            return False
        async with self._slot(connection, seen):
            seen.cached = self._cached(seen.prompt)
            await asyncio.sleep(self._prefill_us * (len(seen.prompt) - seen.cached) / 1e6)
            said = speech(seen.kind, request.value, seen.cached, self._burst)
            whole = await Streaming(connection, seen, said, chosen, key=key, token_s=self._token_s).run()
            self._keep([*seen.prompt, *seen.sent])
        if chosen.mode == "die":
            self.down(chosen.number("s", 1))
        # llama.cpp closes after each stream, whatever its headers say.
        return whole and (seen.kind == "vllm" or connection.doom is not None)

    async def _before_headers(self, connection: Connection, chosen: Fault) -> bool:
        """Whether an answer follows."""
        match chosen.mode:
            case "hang_before_headers":
                await connection.closed.wait()
                raise ConnectionResetError("the peer has closed")
            case "slow_headers":
                await asyncio.sleep(chosen.number("s", 0.5))
            case "close_idle" | "rst_idle":
                connection.doom = "fin" if chosen.mode == "close_idle" else "rst"
            case "close_before_headers":
                return False
            case _:
                connection.reset()
                if chosen.mode == "crash":
                    self.down(chosen.number("s", 1))
                return False
        return True

    async def _refuse(self, connection: Connection, body: Any, seen: Seen, chosen: Fault, key: str) -> bool:
        said = speech(seen.kind, body)
        if chosen.mode == "redirect":
            await connection.send(head(307, ("location", str(chosen.given.get("to", "/canary"))), ("content-length", "0")))
            return True
        status = _STATUSES.get(chosen.mode) or int(chosen.mode)
        extra = []
        if status in (429, 503) and chosen.given.get("retry_after") != "none":
            after_s = chosen.number("retry_after", 2)
            extra = [("retry-after", formatdate(time() + after_s, usegmt=True) if "date" in chosen.given else f"{after_s:g}")]
        words = f"{key}: CUDA out of memory" if chosen.mode == "oom_500" else key
        value = said.too_long() if chosen.mode == "context_length" else said.refusal(status, words)
        await connection.reply(status, value, *extra)
        return True

    @contextlib.asynccontextmanager
    async def _slot(self, connection: Connection, seen: Seen) -> AsyncIterator[None]:
        """Waits for a free slot, where there is a number of them. One whose peer leaves meanwhile is never begun."""
        if self._slots is not None:
            began_s = self._loop.time()
            self.waiting += 1
            try:
                await self._slots.acquire()
            finally:
                self.waiting -= 1
                seen.queued_s = self._loop.time() - began_s
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if connection.closed.is_set():
                raise ConnectionResetError("the peer has closed")
            yield
        finally:
            self.running -= 1
            if self._slots is not None:
                self._slots.release()

    def _cached(self, prompt: list[int]) -> int:
        """How many tokens of a prompt it has worked through before."""
        known = itertools.takewhile(lambda block: block in self._known, _blocks(prompt))
        return min(BLOCK_TOKENS * sum(1 for _ in known), len(prompt) - 1)

    def _keep(self, ids: list[int]) -> None:
        if self._prefill_us:
            self._known.update(_blocks(ids))


def _blocks(ids: list[int]) -> list[int]:
    """One number for each whole block of the ids and all before it."""
    numbers, number = [], 0
    for at in range(BLOCK_TOKENS, len(ids) + 1, BLOCK_TOKENS):
        number = hash((number, *ids[at - BLOCK_TOKENS : at]))
        numbers.append(number)
    return numbers


@contextlib.asynccontextmanager
async def process(*options: str) -> AsyncIterator[dict[str, str]]:
    """An engine in a process of its own: its `url` and its `admin_url`. `options` as for its command line."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "faults.engine", *options]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environ)
    try:
        assert child.stdout is not None
        async with asyncio.timeout(_START_S):
            where: dict[str, str] = json.loads(await child.stdout.readline())
        yield where
    finally:
        child.terminate()
        await child.communicate()


async def main() -> None:
    """An engine in a process of its own, which tells its addresses in one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m faults.engine")
    parser.add_argument("--name", default="a")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--admin-port", type=int, default=0)
    parser.add_argument("--slots", type=int)
    parser.add_argument("--prefill-us", type=float, default=0.0)
    parser.add_argument("--token-s", type=float, default=0.0)
    parser.add_argument("--burst", type=int, default=1)
    wanted = parser.parse_args()
    costs = {"prefill_us": wanted.prefill_us, "token_s": wanted.token_s}
    engine = FaultEngine(wanted.name, slots=wanted.slots, burst=wanted.burst, **costs)
    async with engine.working(wanted.port, wanted.admin_port):
        print(json.dumps({"url": engine.url, "admin_url": engine.admin_url}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
