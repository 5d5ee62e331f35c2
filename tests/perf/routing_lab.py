"""Runs a policy over a case: in the lab's simulator, which is read from a file beside the project, and in the project's own.

The product is the same object in both, `lab.simulate.product.GatewayPolicy`: the gateway's router, with its queue.
"""

import importlib.util
import random
import sys
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from perf.routing_cases import Case

from gateway.routing.choice import Tuning
from lab.simulate.model import EngineModel
from lab.simulate.named import POLICIES
from lab.simulate.policies import Usage
from lab.simulate.product import GatewayPolicy
from lab.simulate.report import report
from lab.simulate.run import simulate
from lab.traces import Prompt, Reading, Trace, read

SHARED = Path(__file__).parents[3] / "shared"
SIMULATOR = SHARED / "tools" / "routing_sim.py"
TRACES = {
    "conversation": "mooncake_conversation_trace.jsonl",
    "synthetic": "mooncake_synthetic_trace.jsonl",
    "agentic": "claude_code_agentic.jsonl",
}


FIRST_SEED = 11
HAIR = 1e-5


@dataclass(frozen=True, slots=True)
class Job:
    """One run: of a policy by the name that the simulation has for it, or of the product's settings. Another `draw` is another
    seed of its chance, and a clock that goes by `HAIR` faster: in overload nothing is ever equal, and the smallest change of a
    moment changes all that follows as much as another choice does."""

    case: Case
    policy: str | Tuning
    seed: int = 1
    draw: int = 0
    ours: bool = False  # in the project's own simulation

    @property
    def ties(self) -> int:
        """The seed of chance."""
        return FIRST_SEED + self.draw

    @property
    def speed(self) -> float:
        """How fast the trace goes."""
        return self.case.speed * (1 + HAIR * self.draw)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run came to: seconds to the first token, and percent of the prompts' tokens that were cached."""

    mean: float
    p95: float
    p99: float
    hit: float
    imbalance: float
    requests: int


def missing() -> str | None:
    """What a run lacks of what lies beside the project; None: nothing."""
    wanted = [SIMULATOR, *(SHARED / "traces" / name for name in TRACES.values())]
    return next((str(each) for each in wanted if not each.is_file()), None)


def run(job: Job) -> Figures:
    """Runs it."""
    return Figures(*(_in_ours(job) if job.ours else _in_the_lab(job)))


def adapter(lab: ModuleType, tuning: Tuning, ties: int) -> type:
    """A policy of the lab's simulator that asks our router, with our queue."""

    class Product(lab.Policy):  # type: ignore[misc, name-defined]  # a module that is read by its path
        def __init__(self, sim: Any) -> None:
            super().__init__(sim)
            model = EngineModel(blocks=sim.eng[0].cap, block_tokens=lab.BS)
            self.gateway = GatewayPolicy(tuning, _Engines(sim.n), model, random.Random(ties))
            self.queue = False  # whether anything was seen that may let a held request go: the simulator asks then
            self.requests: dict[int, Any] = {}

        def choose(self, request: Any, now: float) -> int:
            engine = self.gateway.choose(_prompt(request), now)
            if engine is not None:
                return engine
            self.requests[request.i] = request
            return -1

        def drain(self, now: float) -> list[tuple[Any, int]]:
            self.queue = False
            return [(self.requests.pop(prompt.id), engine) for prompt, engine in self.gateway.released(now)]

        def dispatched(self, request: Any, engine: int, now: float) -> None:
            pass

        def first(self, request: Any, engine: int, now: float) -> None:
            self.gateway.first_token(_prompt(request), engine, now)
            self.queue = bool(self.requests)

        def done_(self, request: Any, engine: int, now: float) -> None:
            self.gateway.finished(_prompt(request), engine, Usage(request.cached, request.nout), now)
            self.queue = bool(self.requests)

    return Product


class _Engines:
    """All that the product may know of the engines beforehand: how many there are."""

    def __init__(self, engines: int) -> None:
        self.engines = engines

    def cached_blocks(self, engine: int, path: object) -> int:
        raise AssertionError("the product has asked what an engine holds")

    def waiting(self, engine: int) -> int:
        raise AssertionError("the product has asked who waits in an engine")

    def kv_usage(self, engine: int) -> float:
        raise AssertionError("the product has asked how full an engine is")


def _prompt(request: Any) -> Prompt:
    return Prompt(request.i, request.nin, request.path, request.sess)


def _in_the_lab(job: Job) -> tuple[float, float, float, float, float, int]:
    lab, case = _lab(), job.case
    requests = _requests(case, job.seed)
    policy = lab.POL[job.policy] if isinstance(job.policy, str) else adapter(lab, job.policy, job.ties)
    made = lab.measure(lab.Sim(requests, case.engines, case.blocks, policy, speed=job.speed).run())
    return made["mean"], made["p95"], made["p99"], 100 * made["hit"], made["imb"], made["n"]


def _in_ours(job: Job) -> tuple[float, float, float, float, float, int]:
    assert isinstance(job.policy, str)
    case = job.case
    trace = _trace(case, job.seed)
    outcome = simulate(trace, case.engines, POLICIES[job.policy], EngineModel(blocks=case.blocks), speed=job.speed, seed=job.ties)
    made = report(outcome, trace.name, job.policy)
    return made.ttft.mean, made.ttft.p95, made.ttft.p99, 100 * made.hit_rate, made.imbalance, made.requests


@cache
def _lab() -> ModuleType:
    spec = importlib.util.spec_from_file_location("routing_sim", SIMULATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["routing_sim"] = module
    spec.loader.exec_module(module)
    return module


@lru_cache(maxsize=2)
def _requests(case: Case, seed: int) -> list[Any]:
    """Each run begins with them anew."""
    lab = _lab()
    requests = lab.load(case.trace, case.limit, case.rate, seed)
    for each in requests:
        each.path = tuple(each.path)
    if case.agents:
        return list(requests)
    return [each for each in requests if len(each.path) + each.nout // lab.BS + 2 < case.blocks * 0.9]


@lru_cache(maxsize=2)
def _trace(case: Case, seed: int) -> Trace:
    return read(SHARED / "traces" / TRACES[case.trace], Reading(case.limit, seed, case.rate))
