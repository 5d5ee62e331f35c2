"""ONE request: admit -> route -> attempt -> parse -> deliver, again elsewhere where an engine failed, and as one answer."""

import asyncio
from contextlib import closing

from gateway.admission import Admission
from gateway.attempt import Attempt
from gateway.errors import GatewayError
from gateway.failover import first_engine, next_attempt
from gateway.job import Job
from gateway.progress import Progress, begun
from gateway.route import Route
from gateway.routing.policy import Decision
from gateway.routing.queue import Place
from gateway.timer import Alarm, stalled
from gateway.waiting import Entrant

_SCHEMA_TRIES = 3  # the first answer and two more, where `on_schema_miss: retry`


async def serve(job: Job, admission: Admission) -> None:
    """Answers the request to its end. Raises a GatewayError where it cannot; a cancellation closes the engine's connection."""
    ledger, members = job.ledger, job.services.registry.members
    place = Place(job.model.name, job.tenant, job.priority)
    with closing(job.route(0)) as route:
        ledger.entered_s = asyncio.get_running_loop().time()
        entrant = Entrant(place, ledger.received_s + job.services.limits.total_s, route.enters)
        decision = await admission.admit(entrant, ledger.waited) or await first_engine(job, route, admission, let_in=True)
        if job.request.n == 1 or members[str(decision.engine)].engine.traits.choices:
            await _choice(job, admission, 0, route, decision)
        else:
            route.close()
            await _all_choices(job, admission)
    limits = job.services.limits
    at_s = min(asyncio.get_running_loop().time() + limits.client_s, job.ledger.received_s + limits.total_s)
    with Alarm(job.services.watchdog, at_s, lambda: stalled(limits)):  # a client that reads no further holds nothing for ever
        await job.sink.finish(job.encoder.end(job.ledger.usage()))


async def _all_choices(job: Job, admission: Admission) -> None:
    """The choices of an engine that makes one at a time, as many at once as there is room for; the first failure ends the
    others."""
    try:
        async with asyncio.TaskGroup() as group:
            for choice in range(job.request.n):
                group.create_task(_further(job, admission, choice))
    except ExceptionGroup as failures:
        known = failures.subgroup(GatewayError)
        if known is None:
            raise  # a bug of ours
        raise _first(known) from failures


def _first(failures: BaseExceptionGroup[GatewayError]) -> GatewayError:
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _further(job: Job, admission: Admission, choice: int) -> None:
    """One of several answers, on an engine of its own."""
    with closing(job.route(choice)) as route:
        await _choice(job, admission, choice, route, None)


async def _choice(job: Job, admission: Admission, choice: int, route: Route, decision: Decision | None) -> None:
    """`decision`: where it begins; None: that is not chosen yet."""
    for number in range(_SCHEMA_TRIES):
        may_miss = number + 1 < _SCHEMA_TRIES
        if decision is None:
            decision = await first_engine(job, route, admission, let_in=not choice or number > 0)
        if await _answer(job, admission, begun(job, route, decision, choice, number=number, may_miss=may_miss), decision):
            return
        decision = None


async def _answer(job: Job, admission: Admission, progress: Progress, decision: Decision) -> bool:
    """One answer, on as many engines as it takes; False where it missed its schema and was thrown away."""
    attempt = Attempt(progress, job.services.registry.members[str(decision.engine)], decision)
    while True:
        try:
            return await attempt.run()
        except GatewayError as error:
            failure = error
        finally:
            attempt.progress.give_back()
        attempt = await next_attempt(attempt, failure, admission)
