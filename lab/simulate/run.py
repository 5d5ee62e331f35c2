"""A trace through a fleet, under a policy: the events in their order, and what became of every request.

Seeded and without a clock: the same trace, fleet, policy and seed give the same result, to the last bit.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

from lab.simulate.model import EngineModel
from lab.simulate.policies import Make, Policy, Usage
from lab.simulate.replica import Job, Replica
from lab.traces import Request, Trace

Loop = Literal["closed", "open"]

_ARRIVES, _LATE = -1, -2  # of a request, in the place of an engine's number


class Unroutable(Exception):
    """The policy never sent a request anywhere."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the requests, in the trace's order, and of the engines. `too_long` are those that no engine has blocks for:
    they were left out."""

    jobs: tuple[Job, ...]
    replicas: tuple[Replica, ...]
    too_long: int


def simulate(
    trace: Trace, engines: int, make: Make, model: EngineModel, *, speed: float = 1.0, loop: Loop | None = None, seed: int = 1
) -> Outcome:
    """Runs the trace, `speed` times as fast. `loop`: whether a session's next request comes when the last answer was read and
    thought about (`closed`; a trace without thinks is `open`), or at its recorded time, however slow the fleet is."""
    if engines < 1 or speed <= 0:
        raise ValueError("a fleet has engines, and a trace a speed above zero")
    replicas = tuple(Replica(model) for _ in range(engines))
    policy = make(_Fleet(replicas), model, random.Random(seed))  # noqa: S311  repeatable, not secret
    run = _Run(replicas, policy, speed)
    run.start(trace, model, closed=loop != "open" and trace.paced)
    run.drive()
    return Outcome(tuple(run.done()), replicas, run.too_long)


class _Fleet:
    """The engines as a policy may see them."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self.engines = len(replicas)

    def cached_blocks(self, engine: int, path: Sequence[int]) -> int:
        return self._replicas[engine].blocks.cached(path)

    def waiting(self, engine: int) -> int:
        return len(self._replicas[engine].waiting)

    def kv_usage(self, engine: int) -> float:
        blocks = self._replicas[engine].blocks
        return blocks.held / blocks.capacity


class _Run:
    def __init__(self, replicas: Sequence[Replica], policy: Policy, speed: float) -> None:
        self.too_long = 0
        self._replicas = replicas
        self._policy = policy
        self._speed = speed
        self._events: list[tuple[float, int, Job | None, int]] = []  # moment, order, whose it is: a job, or an engine's step
        self._count = 0
        self._jobs: dict[int, Job] = {}
        self._due: list[float | None] = [None] * len(replicas)  # when each engine's step ends: other moments of it are void
        self._next: dict[int, Request] = {}

    def start(self, trace: Trace, model: EngineModel, *, closed: bool) -> None:
        """The arrivals that are known beforehand. Where one of a session is left out, the next follows the one before it."""
        instead: dict[int, int | None] = {}
        for request in trace.requests:
            before = instead.get(request.after, request.after) if request.after is not None else None
            if model.blocks_for(request.prompt.tokens + request.output_tokens) > model.blocks:
                self.too_long += 1
                instead[request.prompt.id] = before
            elif closed and before is not None:
                self._next[before] = request
            else:
                self._arrive(request, request.at_s / self._speed)

    def done(self) -> list[Job]:
        """Every request in the order of the trace."""
        return [self._jobs[each] for each in sorted(self._jobs)]

    def drive(self) -> None:
        """Takes the events in their order until there are none."""
        while self._events:
            now_s, _, job, engine = heappop(self._events)
            if job is not None and engine == _ARRIVES:
                self._route(job, now_s)
            elif job is not None:
                if job.engine < 0:
                    self._release(now_s)
            elif self._due[engine] == now_s:
                self._step(engine, now_s)
        if any(job.done_s < 0 for job in self._jobs.values()):
            raise Unroutable("the policy holds requests though no engine is busy")

    def _push(self, moment_s: float, job: Job | None, engine: int) -> None:
        self._count += 1
        heappush(self._events, (moment_s, self._count, job, engine))

    def _arrive(self, request: Request, moment_s: float) -> None:
        self._jobs[request.prompt.id] = job = Job(request, moment_s)
        self._push(moment_s, job, _ARRIVES)

    def _route(self, job: Job, now_s: float) -> None:
        engine = self._policy.choose(job.prompt, now_s)
        if engine is None:
            self._push(now_s + self._policy.wait_s, job, _LATE)
        else:
            self._send(job, engine, now_s)

    def _release(self, now_s: float) -> None:
        for prompt, engine in self._policy.released(now_s):
            self._send(self._jobs[prompt.id], engine, now_s)

    def _send(self, job: Job, engine: int, now_s: float) -> None:
        job.engine = engine
        self._wake(engine, self._replicas[engine].add(job, now_s))

    def _wake(self, engine: int, moment_s: float | None) -> None:
        if moment_s is not None:
            self._due[engine] = moment_s
            self._push(moment_s, None, engine)

    def _step(self, engine: int, now_s: float) -> None:
        replica = self._replicas[engine]
        self._due[engine] = None
        self._wake(engine, replica.advance(now_s))
        for job in replica.first:
            self._policy.first_token(job.prompt, engine, now_s)
        for job in replica.finished:
            usage = Usage(job.cached_tokens, job.request.output_tokens)
            self._policy.finished(job.prompt, engine, usage, now_s)
            if (request := self._next.pop(job.prompt.id, None)) is not None:
                self._arrive(request, now_s + request.think_s / self._speed)
        if replica.first or replica.finished:
            self._release(now_s)
