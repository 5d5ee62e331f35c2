"""What metrics cost: a scrape of 2,000 series, on the loop and beside it, and counting one request.

`PYTHONPATH=tests python -m perf.bench_metrics`; 1 if a scrape takes 50 ms of a processor or more, or 2 ms of the loop. Measured
is processor time of the thread, so that what else runs on the machine counts for little.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace
from support.events import DONE, MADE
from support.metrics import metrics_of
from support.wiring import fleet

from gateway.events import AttemptStarted, CacheTold, Event, FirstToken, Prefilled, Received
from gateway.observe.group import Served
from gateway.observe.health import Health
from gateway.observe.load import Load
from gateway.observe.metrics import OPENMETRICS_TYPE, TEXT_TYPE, Metrics
from gateway.observe.truth import RoutingTruth
from gateway.routing.view import Forecast, Terms

SERIES, GATE_MS, LOOP_GATE_MS = 2_000, 50.0, 2.0
ROUNDS, REQUESTS = 9, 2_000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
EXPECTED = Forecast(100, 60, 0.2, Terms(prefill_s=0.2), unit_tokens=4.0)
ENGINES = [f"e{number}" for number in range(12)]


def request(engine: str) -> list[Event]:
    """The events of one recorded request with 64 tokens."""
    about = ("r", 1, engine, "m")
    made = replace(MADE, engine=engine, inter_token_s=((0.01, 1),) * 63, per_token_s=0.01, recorded=TRACE)
    done = replace(DONE, engine=engine, trace_id=TRACE, sampled=True)
    return [
        Received("r", "openai_chat", 1.0),
        AttemptStarted(*about, 1.0, "cheapest", (), False, EXPECTED),
        Prefilled(*about, 0.1, EXPECTED),
        FirstToken(*about, 0.1),
        made,
        CacheTold(*about, 50, EXPECTED),
        done,
    ]


def filled() -> Metrics:
    """Metrics of engines that all have answered."""
    registry = fleet(*ENGINES)
    more = (lambda _: RoutingTruth(), lambda known: Health(known, registry, {}), lambda known: Load(known, registry))
    metrics = metrics_of([Served("m", tuple(ENGINES), ("hermes",))], *more)
    for engine in ENGINES:
        for event in request(engine):
            metrics(event)
    return metrics


def least_s(work: Callable[[], object]) -> float:
    """Processor time of the quickest round."""
    taken = []
    for _ in range(ROUNDS):
        began_s = time.thread_time()
        work()
        taken.append(time.thread_time() - began_s)
    return min(taken)


def main() -> int:
    """The exit code."""
    metrics = filled()
    worst_ms = 0.0
    for accept in (TEXT_TYPE, OPENMETRICS_TYPE):
        copied = metrics.copied()
        series = sum(not line.startswith(b"#") for line in copied(accept)[1].splitlines())
        copy_ms = least_s(metrics.copied) * 1e3 * SERIES / series
        write_ms = least_s(partial(copied, accept)) * 1e3 * SERIES / series
        print(
            f"a scrape of {SERIES} series: {copy_ms:.2f} ms of the loop, {write_ms:.1f} ms beside it ({accept.partition(';')[0]})"
        )
        worst_ms = max(worst_ms, write_ms, copy_ms * GATE_MS / LOOP_GATE_MS)

    events = request("e0")

    def count() -> None:
        for _ in range(REQUESTS):
            for event in events:
                metrics(event)

    print(f"a request of 64 tokens: {least_s(count) / REQUESTS * 1e6:.1f} us")
    return int(worst_ms >= GATE_MS)


if __name__ == "__main__":
    sys.exit(main())
