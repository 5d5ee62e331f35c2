"""How late the gateway's event loop is while agents with prompts of some 130,000 tokens take turn after turn.

The gateway runs in this process, with a ticker beside it; a fake engine and the client have processes of their own. Measured with
one render worker and with none. How long the loop's thread waited for a processor, which other processes had, is taken off where
the kernel tells it. `PYTHONPATH=tests python -m perf.bench_loop`; 1 if with a worker p99.9 is 50 ms or more.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import get_native_id

import uvloop
from perf.bench_prompt import WORDS
from perf.processes import BenchError, cpu_s, free_port, started, tree
from support.llamacpp import smollm2_file

from gateway.app import Gateway, with_models
from gateway.process import bind_both, serve
from gateway.prompt.pool import RenderPool
from gateway.prompt.renderer import Draft, Renderer
from gateway.prompt.source import read_model
from gateway.prompt.worker import Spoken
from gateway.server.listen import port_of
from gateway.settings import Settings

HERE = Path(__file__).parent
CONTEXT_TOKENS = 1 << 18
PAST, TURNS = 180, 70  # of each agent: those before the first request, which has some 110,000 tokens, and those with one each
AGENTS = 3
TICK_S = 0.005
GATE_MS = 50.0
SHARES: Mapping[str, float] = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
_CONTEXT_KEY = b"llama.context_length" + (4).to_bytes(4, "little")


@dataclass(frozen=True)
class Found:
    """What one run found: how late each tick was, sorted, and how late with the waits for a processor; the seconds until each
    answer began, as they came; CPU seconds."""

    late_ms: list[float]
    whole_ms: list[float]
    ttft_s: list[float]
    gateway_cpu_s: float
    workers_cpu_s: float

    def late_at(self, share: float) -> float:
        """The lateness that this share of the ticks does not exceed."""
        return self.late_ms[min(int(share * len(self.late_ms)), len(self.late_ms) - 1)]


# ---- the client's process -------------------------------------------------------------------------------------------------


def conversations(agent: int) -> Iterator[list[dict[str, str]]]:
    """The messages of one agent's requests: each holds all that was said before, and a tool's answer of some 600 tokens."""
    source = random.Random(agent)
    messages = [{"role": "system", "content": " ".join(source.choices(WORDS, k=3_300))}]
    for turn in range(-PAST, TURNS):
        messages.append({"role": "user", "content": " ".join(source.choices(WORDS, k=260))})
        if turn >= 0:
            yield messages
        messages.append({"role": "assistant", "content": " ".join(source.choices(WORDS, k=25))})


def bodies(agent: int) -> Iterator[bytes]:
    """One agent's requests."""
    for messages in conversations(agent):
        yield json.dumps({"model": "m", "messages": messages, "stream": True, "max_tokens": 16}).encode()


def client(port: int) -> None:
    """The agents' turns, one after the other; writes the seconds to each first byte of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    asked = [body for bodies_ in zip(*map(bodies, range(AGENTS)), strict=True) for body in bodies_]
    waited_s = []
    for body in asked:
        began_s = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read(1)
        waited_s.append(time.perf_counter() - began_s)
        text = answer.read()
        if answer.status != 200 or b"[DONE]" not in text:
            sys.exit(f"{answer.status}: {text[:500]!r}")
    print(json.dumps(waited_s))


# ---- the gateway's process ------------------------------------------------------------------------------------------------


def wide_model(folder: Path) -> Path:
    """The small model's file, but for its context length: room for the prompts."""
    data = bytearray(smollm2_file().read_bytes())
    at = data.index(_CONTEXT_KEY) + len(_CONTEXT_KEY)
    data[at : at + 4] = CONTEXT_TOKENS.to_bytes(4, "little")
    file = folder / "wide.gguf"
    file.write_bytes(data)
    return file


@contextlib.asynccontextmanager
async def gateway(model: Path, engine_port: int, workers: int) -> AsyncIterator[int]:
    """The gateway in this loop, once it can serve; gives its port."""
    engine = {"id": "e", "url": f"http://127.0.0.1:{engine_port}", "kind": "llamacpp"}
    settings = Settings.model_validate(
        {
            "server": {"port": 0, "admin_port": 0},
            "models": [{"name": "m", "source": str(model), "engines": [engine]}],
            "limits": {"render_workers": workers},
        }
    )
    sockets, stop, ready = bind_both(settings.server), asyncio.Event(), asyncio.Event()

    async def on_ready(running: Gateway, _port: int) -> None:
        while not running.registry.view("m").ready:
            await running.registry.changed()
        ready.set()

    serving = asyncio.create_task(serve(with_models(settings), os.environ, sockets, stop, on_ready=on_ready))
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait([serving, waiting], timeout=30, return_when=asyncio.FIRST_COMPLETED)
        if not ready.is_set():
            raise BenchError("the gateway did not become ready")
        yield port_of(sockets[0])
    finally:
        waiting.cancel()
        stop.set()
        await serving


async def measure(model: Path, engine_port: int, workers: int) -> Found:
    """One run. The client's process is not counted as the gateway's."""
    async with gateway(model, engine_port, workers) as port:
        command = [sys.executable, "-m", "perf.bench_loop", "--client", str(port)]
        late_ms: list[tuple[float, float]] = []
        ticking = asyncio.create_task(tick(late_ms))
        own_s, workers_s = time.process_time(), sum(map(cpu_s, tree(os.getpid())[1:]))
        client = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        out, _ = await client.communicate()
        own_s, workers_s = time.process_time() - own_s, sum(map(cpu_s, tree(os.getpid())[1:])) - workers_s
        ticking.cancel()
        if client.returncode:
            raise BenchError(f"the client ended with code {client.returncode}")
    own_ms, whole_ms = (sorted(column) for column in zip(*late_ms, strict=True))
    return Found(own_ms, whole_ms, json.loads(out), own_s, workers_s)


async def tick(late_ms: list[tuple[float, float]]) -> None:
    """Writes down how late the loop wakes it, without the loop's waits for a processor and with them."""
    while True:
        due_s, before_s = time.monotonic() + TICK_S, waited_s()
        await asyncio.sleep(TICK_S)
        whole_s = time.monotonic() - due_s
        late_ms.append((max(whole_s - waited_s() + before_s, 0.0) * 1e3, whole_s * 1e3))


def waited_s() -> float:
    """Seconds that this thread was ready to run and had no processor; 0 where the kernel does not count them."""
    try:
        return int(Path(f"/proc/self/task/{get_native_id()}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


async def round_trips(model: Path) -> str:
    """What the way to a worker and back costs, beside the same renders in this process."""
    here = Renderer(read_model(model), clock=lambda: datetime.now(UTC))
    spoken = Spoken(str(model), "text", read_model(model).digest())
    began_s = time.perf_counter()
    async with RenderPool({"m": spoken}, workers=1, render_s=60, wait_s=60, environ=os.environ) as pool:
        await pool.render("m", Draft("default", {"messages": [{"role": "user", "content": "a"}]}))
        lines = [f"a worker is ready after {(time.perf_counter() - began_s) * 1e3:.0f} ms"]
        for name, messages in zip(("first", "next turn"), conversations(0), strict=False):
            draft = Draft("default", {"messages": messages, "add_generation_prompt": True})
            began_s = time.perf_counter()
            there = await pool.render("m", draft)
            there_s, began_s = time.perf_counter() - began_s, time.perf_counter()
            if here.render(draft) != there:
                raise BenchError("the worker's rendering is another")
            here_s = time.perf_counter() - began_s
            lines.append(f"{name} of {len(there.ids)} tokens: {there_s * 1e3:.0f} ms there, {here_s * 1e3:.0f} ms here")
        there_ms, here_ms = await turn_ms(pool, here)
        lines.append(f"the gateway's CPU for an agent's turn of 20 messages: {there_ms:.2f} ms there, {here_ms:.2f} ms here")
        lines.append(f"its memory: {peak_mb(tree(os.getpid())[1]):.0f} MB at most")
    return "; ".join(lines)


async def turn_ms(pool: RenderPool, here: Renderer) -> tuple[float, float]:
    """CPU of this process for a turn of some 6,000 tokens that has one new message: rendered there, and here."""
    messages = [{"role": role, "content": " ".join(WORDS[:400])} for _ in range(9) for role in ("user", "assistant")]
    turns = [Draft("default", {"messages": [*messages, {"role": "user", "content": f"turn {number}"}]}) for number in range(100)]
    await pool.render("m", turns[0])
    began_s = time.process_time()
    for turn in turns[1:]:
        await pool.render("m", turn)
    there_s, began_s = time.process_time() - began_s, time.process_time()
    for turn in turns:
        here.render(turn)
    return there_s / (len(turns) - 1) * 1e3, (time.process_time() - began_s) / len(turns) * 1e3


def peak_mb(pid: int) -> float:
    """The most that a process had resident."""
    (peak_kb,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(peak_kb) / 1024


def shown(name: str, found: Found) -> str:
    """The figures for people."""
    late = "  ".join(f"{label} {found.late_at(share):.1f}" for label, share in SHARES.items())
    waits = f"with waits for a processor {found.whole_ms[int(0.999 * len(found.whole_ms))]:.1f}"
    first_ms, warm_ms = (statistics.median(part) * 1e3 for part in (found.ttft_s[:AGENTS], found.ttft_s[AGENTS:]))
    gateway_ms, workers_ms = (seconds / len(found.ttft_s) * 1e3 for seconds in (found.gateway_cpu_s, found.workers_cpu_s))
    return (
        f"{name}: late by ms  {late}  max {found.late_ms[-1]:.1f}  (p99.9 {waits}; {len(found.late_ms)} ticks)\n"
        f"  an answer began after {first_ms:.0f} ms the first time, then {warm_ms:.0f} ms; "
        f"CPU a turn: gateway {gateway_ms:.0f} ms, workers {workers_ms:.0f} ms"
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="How late the event loop is under long prompts.")
    parser.add_argument("--client", type=int, metavar="PORT", help="be the client (the benchmark starts it)")
    arguments = parser.parse_args()
    if arguments.client:
        client(arguments.client)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        model = wide_model(folder)
        command = [str(HERE / "mock_engine.py"), "--port", str(port), "--source", str(model)]
        with started("engine", command, f"http://127.0.0.1:{port}/health", folder):
            print(uvloop.run(round_trips(model)))
            print(shown("in threads   ", uvloop.run(measure(model, port, 0))))
            found = uvloop.run(measure(model, port, 1))
            print(shown("in a worker  ", found))
            if found.late_at(0.999) >= GATE_MS:
                print("Over the gate: measured once more, since a busy moment of the machine is no lag of ours.")
                found = uvloop.run(measure(model, port, 1))
                print(shown("in a worker  ", found))
    return int(found.late_at(0.999) >= GATE_MS)


if __name__ == "__main__":
    sys.exit(main())
