"""ONE request: admit -> route -> attempt -> parse -> deliver."""

import asyncio

from gateway.admission import Admission
from gateway.attempt import Attempt
from gateway.errors import GatewayError, Rejected
from gateway.fleet.registry import Member
from gateway.job import Job
from gateway.routing.policy import choose
from gateway.timer import Alarm, stalled

_SCHEMA_TRIES = 3  # the first answer and two more, where `on_schema_miss: retry`


async def serve(job: Job, admission: Admission) -> None:
    """Answers the request to its end. Raises a GatewayError where it cannot; a cancellation closes the engine's connection."""
    async with admission.admit(job.model.name, job.ledger.waited):
        if _route(job).engine.traits.choices or job.request.n == 1:
            await _choice(job, 0)
        else:
            await _all_choices(job)
    total_s = job.services.limits.total_s
    # A client that reads no further holds nothing for ever.
    with Alarm(job.services.watchdog, job.ledger.received_s + total_s, lambda: stalled(total_s)):
        await job.sink.finish(job.encoder.end(job.ledger.usage()))


async def _all_choices(job: Job) -> None:
    """The choices of an engine that makes one at a time, at once; the first failure ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for choice in range(job.request.n):
                group.create_task(_choice(job, choice))
    except ExceptionGroup as failures:
        known = failures.subgroup(GatewayError)
        if known is None:
            raise  # a bug of ours
        raise _first(known) from failures


def _first(failures: BaseExceptionGroup[GatewayError]) -> GatewayError:
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _choice(job: Job, choice: int) -> None:
    for number in range(_SCHEMA_TRIES):
        if await Attempt(job, _route(job), choice, number=number, may_retry=number + 1 < _SCHEMA_TRIES).run():
            return


def _route(job: Job) -> Member:
    registry = job.services.registry
    engine = choose(registry.view(job.model.name))
    if engine is None:
        raise Rejected("No engine is ready.", reason="no_engine", retry_after_s=1.0)
    return registry.members[engine]
