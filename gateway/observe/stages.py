"""A request's duration, taken apart: the log, the metrics and the traces tell the same of it."""

from collections.abc import Mapping
from typing import Literal

from gateway.events import Finished

Stage = Literal["render", "queue", "prefill", "decode", "client", "other"]


def stages_of(done: Finished) -> Mapping[Stage, float]:
    """Seconds of each stage. None is negative, and together they are the request's duration: what was measured twice, as where
    several answers came at once, counts for the earlier stage."""
    measured: tuple[tuple[Stage, float], ...] = (
        ("render", done.rendered[1] - done.rendered[0] if done.rendered is not None else 0.0),
        ("queue", done.queue_s),
        ("prefill", done.prefill_s),
        ("decode", done.decode_s),
        ("client", done.client_stall_s),
    )
    left_s = max(done.duration_s, 0.0)
    stages: dict[Stage, float] = {}
    for stage, seconds in measured:
        stages[stage] = taken_s = min(max(seconds, 0.0), left_s)
        left_s -= taken_s
    stages["other"] = left_s
    return stages
