"""How long the simulation of 100,000 requests takes, in seconds of CPU: at most LIMIT_S, or it exits 1.

`python -m perf.bench_simulate [TRACE]`: the trace, by default one of the tests', is repeated end to end, no copy sharing a block
with another, until it has so many requests.
"""

import sys
from dataclasses import replace
from pathlib import Path
from time import process_time

from lab.simulate.model import EngineModel
from lab.simulate.named import POLICIES
from lab.simulate.report import report
from lab.simulate.run import simulate
from lab.traces import Reading, Trace, multiplied, read

REQUESTS = 100_000
ENGINES = 8
LIMIT_S = 60.0
POLICIES_TIMED = ("round_robin", "least_outstanding", "sglang_like", "cost")
CHATS = Path(__file__).parent.parent / "data" / "traces" / "chats.jsonl"


def repeated(trace: Trace, requests: int) -> Trace:
    """The trace again and again, so many requests long."""
    size, span_s = len(trace.requests), max(each.at_s for each in trace.requests)
    many = multiplied(trace, -(-requests // size)).requests[:requests]
    return replace(trace, requests=tuple(replace(each, at_s=each.at_s + each.prompt.id // size * span_s) for each in many))


def main() -> int:
    trace = repeated(read(Path(sys.argv[1]) if sys.argv[1:] else CHATS, Reading()), REQUESTS)
    slowest_s = 0.0
    for policy in POLICIES_TIMED:
        began_s = process_time()
        made = report(simulate(trace, ENGINES, POLICIES[policy], EngineModel()), trace.name, policy)
        took_s = process_time() - began_s
        slowest_s = max(slowest_s, took_s)
        print(f"{policy:18s} {made.requests} requests: {took_s:5.1f} s of CPU, TTFT mean {made.ttft.mean:.3f} s", flush=True)
    print(f"slowest {slowest_s:.1f} s of CPU, at most {LIMIT_S:.0f}: {'ok' if slowest_s <= LIMIT_S else 'MISSED'}")
    return 0 if slowest_s <= LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
