"""What a soak is judged by: each check with its figure, from numbers alone."""

from collections.abc import Sequence
from dataclasses import dataclass

WARM_UP_S = 300.0
GROWTH_MIB = 1.0  # in ten minutes
TEN_MINUTES_S = 600.0
SUCCESS = 0.999
MOST_IDLE = 8
NOT_OFFERED = 0.05


@dataclass(frozen=True, slots=True)
class Check:
    """One of them. `said` holds its figure."""

    name: str
    holds: bool
    said: str

    def line(self) -> str:
        """As it is printed."""
        return f"{'ok  ' if self.holds else 'FAIL'} {self.name}: {self.said}"


@dataclass(frozen=True, slots=True)
class Sample:
    """The gateway's memory and descriptors, so many seconds after the load began. Connections to engines are counted apart."""

    at_s: float
    rss_kib: int
    descriptors: int
    to_engines: int


@dataclass(slots=True)
class Counts:
    """What became of the requests that were read to their end, and how many had their heads sent whole (`sent`).

    `judged` are those whose client read on to the end and whose engines were not all asked to fail: each of them had a healthy
    engine. `good` are those of them that got what the unbroken engine says, or the 4xx that their engine was told to answer with.
    `apart` are failed ones, not judged, for which no gateway could have done more: the request itself rules out an exact
    resume (`n` of 2, or a penalty), and its engine broke off after its client had been given a part of the answer.
    """

    sent: int = 0
    judged: int = 0
    good: int = 0
    apart: int = 0
    left: int = 0  # clients that did not read on
    not_offered: int = 0  # as many as may run at a time did


def slope_mib(samples: Sequence[Sample], warm_up_s: float) -> float | None:
    """MiB that the memory grows in ten minutes, by least squares over the samples after the warm-up; None where they are few."""
    points = [(each.at_s, each.rss_kib / 1024) for each in samples if each.at_s >= warm_up_s]
    if len(points) < 3:
        return None
    middle_s = sum(at for at, _ in points) / len(points)
    middle_mib = sum(mib for _, mib in points) / len(points)
    spread = sum((at - middle_s) ** 2 for at, _ in points)
    return TEN_MINUTES_S * sum((at - middle_s) * (mib - middle_mib) for at, mib in points) / spread


def memory(samples: Sequence[Sample], run_s: float) -> Check:
    """Below 1 MiB in ten minutes. A run with less than ten minutes after its warm-up may grow by 1 MiB in what it has, as noise
    weighs more there; the warm-up is the first 40 % of a run of less than 750 s."""
    warm_up_s = min(WARM_UP_S, 0.4 * run_s)
    over_s = run_s - warm_up_s
    limit = GROWTH_MIB * max(1.0, TEN_MINUTES_S / over_s)
    slope = slope_mib(samples, warm_up_s)
    if slope is None:
        return Check("memory", False, "too few samples")
    scaled = "" if limit == GROWTH_MIB else f", scaled as only {over_s:.0f} s were measured"
    last = f"{samples[-1].rss_kib / 1024:.1f} MiB at the end"
    said = f"{slope:+.2f} MiB in 10 min after {warm_up_s:.0f} s of warm-up (below {limit:.2f}{scaled}), {last}"
    return Check("memory", slope < limit, said)


def success(counts: Counts) -> Check:
    """At least 99.9 % of the requests that had a healthy engine."""
    share = counts.good / counts.judged if counts.judged else 0.0
    bad = counts.judged - counts.good
    said = f"{share:.4%} of {counts.judged} requests that had a healthy engine (at least {SUCCESS:.1%}), {bad} failed"
    said += f"; apart: {counts.apart} that cannot be resumed and broke after their first byte, {counts.left} whose clients left"
    return Check("success", share >= SUCCESS, said)


def outcomes(counts: Counts, counted: float) -> Check:
    """Each request has one."""
    return Check("outcomes", counted == counts.sent, f"{counted:.0f} counted of {counts.sent} requests")


def offered(counts: Counts) -> Check:
    """The load was what it was to be."""
    wanted = counts.sent + counts.not_offered
    said = f"{counts.sent} requests; {counts.not_offered} not sent, as so many ran already (at most {NOT_OFFERED:.0%})"
    return Check("load", counts.not_offered <= NOT_OFFERED * wanted and counts.sent > 0, said)


def running(in_flight: float) -> Check:
    """No attempt counts as running."""
    return Check("in flight", in_flight == 0, f"{in_flight:.0f} at the end")


def descriptors(before: int, after: int, to_engines: int, engines: int) -> Check:
    """As many as before the load, or fewer, but for idle connections to engines, which probes keep in use: few each."""
    few = MOST_IDLE * engines
    said = f"{after} at the end, {before} before the load; {to_engines} idle connections to {engines} engines (at most {few})"
    return Check("descriptors", after <= before and to_engines <= few, said)


def ended(code: int | None, log: str) -> list[Check]:
    """The process ends as it should, and never said anything of a bug."""
    return [
        Check("exit", code == 0, f"code {code} at SIGTERM"),
        Check("log", "Traceback" not in log, f"{log.count('Traceback')} tracebacks"),
    ]
