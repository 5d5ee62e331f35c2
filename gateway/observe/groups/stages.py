"""Where the time of requests goes."""

from typing import get_args

from gateway.events import NO_MODEL, Finished
from gateway.observe.group import Group, Known, Pair, Served, Starts
from gateway.observe.series import PAIR, Counter
from gateway.observe.stages import Stage, stages_of


class Stages(Group):
    """Why a model is slow: its queue, its engine's prefill or decoding, or clients that do not read."""

    def __init__(self, _: Known) -> None:
        self._seconds = Counter(
            "interlock_request_stage_seconds_total",
            "Seconds of requests by what they were spent on; the stages of a request sum to its duration. render: making the"
            " prompt; queue: waiting for an engine; prefill: from the last attempt's start to its first token; decode: from there"
            " to its end; client: blocked on a client that did not read; other: the rest, with it the attempts before the last.",
            (*PAIR, "stage"),
        )
        super().__init__("Stages", (self._seconds,), {Finished: self._finished})

    def starts(self, served: Served, engine: str) -> Starts:
        """Every stage."""
        yield self._seconds, [(served.model, engine, stage) for stage in get_args(Stage)]

    def _finished(self, pair: Pair, event: Finished) -> None:
        for stage, seconds in stages_of(event).items() if pair[0] != NO_MODEL else ():
            if seconds:
                self._seconds.add((*pair, stage), seconds)


GROUP = Stages
