"""What a run comes to, in the numbers that people compare."""

from collections.abc import Sequence
from statistics import fmean

import msgspec

from lab.simulate.run import Outcome


class Spread(msgspec.Struct, frozen=True):
    """Of one quantity, in seconds: the mean, and the values that so many in a hundred do not exceed."""

    mean: float
    p50: float
    p95: float
    p99: float


class Report(msgspec.Struct, frozen=True):
    """One run. `ttft` is the time from the arrival at the gateway to the first token; `tpot` that from the first token to the
    last, over the tokens after the first, of answers of two or more; `hit_rate` the share of all prompt tokens that were cached
    when their prompt was first admitted; `imbalance` the most prefill work of an engine against the mean; `prefill_busy` the
    share of all engines' time that prefill took."""

    trace: str
    policy: str
    engines: int
    requests: int
    too_long: int
    preempted: int
    span_s: float
    requests_per_s: float
    ttft: Spread
    tpot: Spread
    hit_rate: float
    imbalance: float
    prefill_busy: float


def report(outcome: Outcome, trace: str, policy: str) -> Report:
    """The numbers of a run, which served one request at least."""
    jobs = outcome.jobs
    work_s = [replica.prefill_busy_s for replica in outcome.replicas]
    mean_work_s = fmean(work_s)
    span_s = max(job.done_s for job in jobs) - min(job.arrived_s for job in jobs)
    paces = [(job.done_s - job.first_s) / (out - 1) for job in jobs if (out := job.request.output_tokens) > 1]
    return Report(
        trace=trace,
        policy=policy,
        engines=len(outcome.replicas),
        requests=len(jobs),
        too_long=outcome.too_long,
        preempted=sum(replica.preemptions for replica in outcome.replicas),
        span_s=span_s,
        requests_per_s=len(jobs) / span_s,
        ttft=spread([job.first_s - job.arrived_s for job in jobs]),
        tpot=spread(paces or [0.0]),
        hit_rate=sum(job.cached_tokens for job in jobs) / sum(job.prompt.tokens for job in jobs),
        imbalance=max(work_s) / mean_work_s if mean_work_s else 1.0,
        prefill_busy=mean_work_s / span_s,
    )


def spread(values: Sequence[float]) -> Spread:
    """The spread of one or more values; percentiles between two are interpolated (type 7)."""
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = int(place)
        return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (place - low)

    return Spread(fmean(ordered), at(0.5), at(0.95), at(0.99))


def lines(made: Report) -> list[str]:
    """For people."""
    left_out = f"; {made.too_long} left out, longer than an engine's memory" if made.too_long else ""
    return [
        f"{made.trace}, {made.policy}, {made.engines} engines: {made.requests} requests in {made.span_s:.0f} s{left_out}",
        f"  TTFT       mean {made.ttft.mean:.3f} s, p50 {made.ttft.p50:.3f}, p95 {made.ttft.p95:.3f}, p99 {made.ttft.p99:.3f}",
        f"  TPOT       mean {made.tpot.mean * 1e3:.1f} ms, p50 {made.tpot.p50 * 1e3:.1f}, p95 {made.tpot.p95 * 1e3:.1f},"
        f" p99 {made.tpot.p99 * 1e3:.1f}",
        f"  hit rate   {made.hit_rate:.1%} of the prompts' tokens",
        f"  imbalance  {made.imbalance:.2f} (most prefill work of an engine against the mean)",
        f"  prefill    {made.prefill_busy:.0%} of the engines' time",
        f"  pre-empted {made.preempted}",
    ]
