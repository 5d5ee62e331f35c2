"""Runs the product's router inside the lab's own simulator, beside that simulator's policies.

    python tests/perf/routing_lab.py [SIMULATOR] --case A --limit 4000 --policies cost,ours

SIMULATOR is the lab's routing_sim.py; without one it is looked for in ../shared/tools. Where there is none, nothing is run.
"""

import argparse
import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from gateway.routing.choice import Query, Tuning
from gateway.routing.router import Router
from gateway.routing.view import EngineView, FleetView

ROOT = Path(__file__).parents[2]
CASES = {  # trace, engines, blocks of 512 tokens, speed
    "A": ("conversation", 8, 4000, 1.0),
    "B": ("conversation", 8, 4000, 2.0),
    "C": ("conversation", 8, 1000, 1.0),
    "D": ("conversation", 16, 4000, 3.5),
    "E": ("synthetic", 4, 4000, 1.0),
    "F": ("agentic", 8, 1000, 1.0),
    "G": ("agentic", 8, 4000, 4.0),
    "H": ("agentic", 16, 2000, 2.0),
}
_MISSES, _AGEING = 16, 0.5


def adapter(lab: ModuleType, tuning: Tuning) -> type:
    """A policy of the simulator that asks our router. With `hold_s` it is the gateway's queue as well."""

    class Product(lab.Policy):  # type: ignore[misc, name-defined]  # a module that is read by its path
        def __init__(self, sim: Any) -> None:
            super().__init__(sim)
            self.router = Router(tuning, random.Random(11))
            self.names = [f"e{number:02}" for number in range(sim.n)]
            self.number = {name: number for number, name in enumerate(self.names)}
            self.view = FleetView(tuple(EngineView(name, ready=True) for name in self.names))
            for name, engine in zip(self.names, sim.eng, strict=True):
                self.router.capacity(name, engine.cap * lab.BS)
            self.queue: list[Any] = []
            self.errors: list[tuple[float, float, int, int]] = []
            self.told: dict[int, Any] = {}

        def choose(self, request: Any, now: float) -> int:
            query = Query(str(request.i), tuple(request.path), request.nin, affinity=None)
            choice = self.router.choose(query, self.view, now)
            if choice.hold:
                request.root = choice.prefill_s
                self.queue.append(request)
                return -1
            self.told[request.i] = now, choice
            return self.number[choice.engine or ""]

        def drain(self, now: float) -> Any:
            waiting = sorted(self.queue, key=lambda request: request.root - _AGEING * (now - request.t))
            self.queue = []
            misses = 0
            for at, request in enumerate(waiting):
                if misses >= _MISSES:
                    self.queue += waiting[at:]
                    return
                engine = self.choose(request, now)
                if engine >= 0:
                    yield request, engine
                else:
                    misses += 1

        def dispatched(self, request: Any, engine: int, now: float) -> None:
            pass

        def first(self, request: Any, engine: int, now: float) -> None:
            self.router.first_token(str(request.i), now)
            at, choice = self.told.pop(request.i)
            self.errors.append((choice.ttft_s, now - at, choice.cached_tokens, request.cached))

        def done_(self, request: Any, engine: int, now: float) -> None:
            self.router.finished(str(request.i), now, request.nout, request.cached)

    return Product


def load(path: Path) -> ModuleType:
    """The simulator as a module."""
    spec = importlib.util.spec_from_file_location("routing_sim", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["routing_sim"] = module
    spec.loader.exec_module(module)
    return module


def run(lab: ModuleType, case: str, name: str, limit: int | None, drawn: tuple[float, int]) -> str:
    """One policy over one case, `drawn` sessions a second and seed: the simulator's line, and how good the predictions were."""
    trace, engines, blocks, speed = CASES[case]
    requests = lab.load(trace, limit, *drawn)
    if trace != "agentic":
        requests = [each for each in requests if len(each.path) + each.nout // lab.BS + 2 < blocks * 0.9]
    held = {"cost": None, "cost_q": 1.0}
    if name in held:
        policy = adapter(lab, Tuning("cost", lab.BS, held[name]))
    elif name in ("round_robin", "least_outstanding", "session"):
        policy = adapter(lab, Tuning(name, lab.BS))  # type: ignore[arg-type]  # a name of the command line
    else:
        policy = lab.POL[name]
    sim = lab.Sim(requests, engines, blocks, policy, speed=speed).run()
    figures = lab.measure(sim) | {"name": name, "wall": 0.0}
    line = str(lab.row(figures))
    errors = getattr(sim.pol[0], "errors", [])
    if errors:
        off = sorted(abs(told - seen) / max(seen, 1e-3) for told, seen, _, _ in errors)
        near = sum(abs(told - seen) <= 0.05 * seen for _, _, told, seen in errors) / len(errors)
        router = sim.pol[0].router
        p, q, step = router._speed.parameters
        line += f" TTFT off {off[len(off) // 2]:.0%} cached near {near:.1%} open {router.open}"
        line += f" p {p * 1e6:.0f}us q {q * 1e9:.2f}ns step {step * 1e3:.0f}ms"
    return line


def main() -> None:
    """See the module."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("simulator", nargs="?", type=Path, default=ROOT.parent / "shared" / "tools" / "routing_sim.py")
    arguments.add_argument("--case", default="A,F")
    arguments.add_argument("--limit", type=int)
    arguments.add_argument("--rate", type=float, default=0.05)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--policies", default="cost,cost_q,ours,ours_q")
    told = arguments.parse_args()
    if not told.simulator.exists():
        print(f"skipped: no simulator at {told.simulator}")
        return
    lab = load(told.simulator)
    for case in told.case.split(","):
        print(f"case {case}: {CASES[case]}\n{lab.HDR}", flush=True)
        for name in told.policies.split(","):
            print(run(lab, case, name, told.limit, (told.rate, told.seed)), flush=True)


if __name__ == "__main__":
    main()
