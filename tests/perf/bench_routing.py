"""What the product's router makes of the cases A to H beside what other routers do, and what its decisions cost.

    PYTHONPATH=tests python -m perf.bench_routing [--short] [--cases A,F] [--only cases|cost]

Each case is run in the lab's simulator, in which the goals were measured, and in the project's own. The product is run with
several draws of its ties, since with one of them alone its mean differs by some percent, and in overload (E) by a fifth; what is
compared is the mean of these.

Exit code 1: a goal is missed; 2: the traces or the lab's simulator are not there, so that nothing is said of any goal. `--short`,
which CI runs, exits 0 then, and its last line says that nothing was measured.
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from multiprocessing import get_context
from statistics import fmean

from perf import routing_cost
from perf.routing_cases import CASES, PEERS, PUBLISHED, SHORT, SHORT_LIMIT, SHORT_MARGIN, Case, Row
from perf.routing_lab import Figures, Job, missing, run

from gateway.routing.choice import Tuning

PROCESSES = 2
BEHIND = 1.03  # how far behind the best peer a mean may be
PRODUCT = "Interlock"
NAME_WIDTH = 27

Figured = dict[tuple[str, int, str, bool], Row]  # by case, seed, policy, and whether it is the project's own simulation


class Verdicts:
    """What holds and what does not, as it is found."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def hold(self, name: str, figure: float, goal: float, *, least: bool = False) -> str:
        """Notes whether a figure reaches its goal. For people."""
        met = figure >= goal if least else figure <= goal
        told = f"{name} {_three(figure)} {'of at least' if least else 'of at most'} {_three(goal)}: {'met' if met else 'MISSED'}"
        if not met:
            self.missed.append(told)
        return told


def jobs(cases: Iterable[Case], *, simulation: bool) -> Iterator[tuple[str, Job]]:
    """All runs, with the name that each has in a table."""
    for case in cases:
        for seed in case.seeds:
            for name, (lab, own) in PEERS.items():
                yield name, Job(case, lab, seed)
                if own and simulation:
                    yield name, Job(case, own, seed, ours=True)
            for draw in range(case.draws):
                yield PRODUCT, Job(case, Tuning(), seed, draw)
                if simulation:
                    yield PRODUCT, Job(case, "cost", seed, draw, ours=True)


def measured(cases: Iterable[Case], *, simulation: bool) -> Iterator[tuple[Case, Figured]]:
    """Each case's figures, as soon as they are there."""
    cases = list(cases)
    todo = list(jobs(cases, simulation=simulation))
    seen: dict[tuple[str, int, str, bool], list[Figures]] = {}
    with get_context("spawn").Pool(PROCESSES) as pool:
        results = pool.imap(run, [job for _, job in todo])
        for place, (name, job) in enumerate(todo):
            seen.setdefault((job.case.name, job.seed, name, job.ours), []).append(next(results))
            if place + 1 == len(todo) or todo[place + 1][1].case is not job.case:
                yield job.case, {key: _mean(figures) for key, figures in seen.items()}
                seen = {}


def _mean(figures: list[Figures]) -> Row:
    return Row(*(fmean(getattr(each, part) for each in figures) for part in Row._fields))


def _three(value: float) -> str:
    """Three digits, as the published rows have."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _shown(row: Row | None) -> str:
    return f"{_three(row.mean)} / {_three(row.p95)} ({row.hit:.1f})" if row else ""


def same(row: Row, published: Row) -> bool:
    """Whether these are the figures that were published."""
    return _shown(row) == _shown(published)


def table(case: Case, seed: int, figured: Figured, *, published: bool) -> list[str]:
    """Of one case and seed."""
    lines = [f"{'':{NAME_WIDTH}s} {'lab':22s} {'published for the lab':24s} simulation"]
    for name in (*PEERS, PRODUCT):
        row, own = figured[case.name, seed, name, False], figured.get((case.name, seed, name, True))
        was = PUBLISHED.get((name, case.name)) if published and seed == case.seeds[0] else None
        equal = "" if was is None else " =" if same(row, was) else " DIFFERS"
        lines.append(f"{name:{NAME_WIDTH}s} {_shown(row):22s} {_shown(was) + equal:24s} {_shown(own)}".rstrip())
    return lines


def best_peer(case: Case, seed: int, figured: Figured, *, ours: bool) -> tuple[str, Row]:
    """The peer with the least mean."""
    rows = {name: figured[key] for name in PEERS if (key := (case.name, seed, name, ours)) in figured}
    return min(rows.items(), key=lambda item: item[1].mean)


def judge(case: Case, figured: Figured, verdicts: Verdicts, *, simulation: bool) -> Iterator[str]:
    """Holds a case to its goal, and every seed of it to its peers."""
    rows = [figured[case.name, seed, PRODUCT, False] for seed in case.seeds]
    mean = Row(*(fmean(each) for each in zip(*rows, strict=True)))
    over = f" over seeds {', '.join(map(str, case.seeds))}" if len(case.seeds) > 1 else ""
    for part in ("mean", "p95"):
        yield verdicts.hold(f"{case.name} {part}{over}", getattr(mean, part), getattr(case.goal, part))
    yield verdicts.hold(f"{case.name} hit rate{over}", round(mean.hit, 1), case.goal.hit, least=True)  # as it was measured
    yield from judge_peers(case, figured, verdicts, simulation=simulation)


def judge_peers(case: Case, figured: Figured, verdicts: Verdicts, *, simulation: bool) -> Iterator[str]:
    """Holds the product's mean to the best peer's, in every seed and both simulators."""
    for seed in case.seeds:
        for ours in (False, True) if simulation else (False,):
            peer, row = best_peer(case, seed, figured, ours=ours)
            where = f"{case.name}{f' seed {seed}' if len(case.seeds) > 1 else ''}, {'simulation' if ours else 'lab'}"
            mine = figured[case.name, seed, PRODUCT, ours].mean
            yield verdicts.hold(f"{where}: mean, of that of {peer}", mine / row.mean, BEHIND)


def cases_bench(cases: list[Case], verdicts: Verdicts) -> str:
    """Runs the cases and prints their tables. For the last line."""
    met = equal = rows = 0
    for case, figured in measured(cases, simulation=True):
        before = len(verdicts.missed)
        for seed in case.seeds:
            print(f"\n{case.told()}, seed {seed}")
            print("\n".join(table(case, seed, figured, published=True)))
        print("\n".join(judge(case, figured, verdicts, simulation=True)), flush=True)
        met += len(verdicts.missed) == before
        for name in PEERS:
            rows += 1
            equal += same(figured[case.name, case.seeds[0], name, False], PUBLISHED[name, case.name])
    return f"{met} of {len(cases)} cases meet their goals, {equal} of {rows} published rows are reproduced"


def short_bench(verdicts: Verdicts) -> str:
    """A and F, with fewer requests: beside the peers of the same run, and beside what the product has been measured to do."""
    cases = [replace(CASES[name], limit=SHORT_LIMIT, seeds=CASES[name].seeds[:1]) for name in SHORT]
    met = 0
    for case, figured in measured(cases, simulation=False):
        before, seed = len(verdicts.missed), case.seeds[0]
        row, pin = figured[case.name, seed, PRODUCT, False], SHORT[case.name]
        print(f"\n{case.told()}")
        print("\n".join(table(case, seed, figured, published=False)))
        for part in ("mean", "p95"):
            most = getattr(pin, part) * (1 + SHORT_MARGIN)
            print(verdicts.hold(f"{case.name} {part}, {_three(getattr(pin, part))} when pinned,", getattr(row, part), most))
        print(verdicts.hold(f"{case.name} hit rate", row.hit, pin.hit * (1 - SHORT_MARGIN), least=True))
        print("\n".join(judge_peers(case, figured, verdicts, simulation=False)), flush=True)
        met += len(verdicts.missed) == before
    return f"{met} of {len(cases)} short cases meet their goals"


def _cost(verdicts: Verdicts) -> str:
    print("What a decision costs, and the memory of the index", flush=True)
    missed = routing_cost.measure()
    verdicts.missed += missed
    return f"{'a decision costs' if not missed else 'a decision does NOT cost'} what it may"


def cpu_s() -> float:
    """Seconds of CPU of all processes of the bench, which have ended: what it takes where others want the processor too."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> int:
    """See the module."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--short", action="store_true")
    arguments.add_argument("--cases", default=",".join(CASES))
    arguments.add_argument("--only", choices=("cases", "cost"))
    told = arguments.parse_args()
    began_s, verdicts = time.perf_counter(), Verdicts()
    parts: list[Callable[[], str]] = []
    if told.short:
        parts = [lambda: short_bench(verdicts)]
    else:
        if told.only != "cases":
            parts.append(lambda: _cost(verdicts))
        if told.only != "cost":
            parts.append(lambda: cases_bench([CASES[name] for name in told.cases.split(",")], verdicts))
    if told.only != "cost" and (lacking := missing()):
        print(f"bench-routing: skipped, nothing was measured: there is no {lacking}")
        return 0 if told.short else 2
    said = [part() for part in parts]
    for each in verdicts.missed:
        print(f"missed: {each}")
    took = f"{time.perf_counter() - began_s:.0f} s, {cpu_s():.0f} of CPU"
    print(f"bench-routing: {'; '.join(reversed(said))}; {took}")
    return 1 if verdicts.missed else 0


if __name__ == "__main__":
    sys.exit(main())
