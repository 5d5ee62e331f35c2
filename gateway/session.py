"""ONE request: admit -> route -> attempt -> parse -> deliver, again elsewhere where an engine failed, and as one answer."""

import asyncio

from gateway.admission import Admission, Entrant
from gateway.attempt import Attempt
from gateway.errors import GatewayError
from gateway.failover import first_engine, next_attempt
from gateway.job import Job
from gateway.progress import begun
from gateway.routing.queue import Place
from gateway.timer import Alarm, stalled

_SCHEMA_TRIES = 3  # the first answer and two more, where `on_schema_miss: retry`


async def serve(job: Job, admission: Admission) -> None:
    """Answers the request to its end. Raises a GatewayError where it cannot; a cancellation closes the engine's connection."""
    one = job.request.n == 1
    async with admission.admit(_entrant(job), job.ledger.waited):
        if one or first_engine(job)[0].engine.traits.choices:
            await _choice(job, 0)
        else:
            await _all_choices(job)
    limits = job.services.limits
    at_s = min(asyncio.get_running_loop().time() + limits.client_s, job.ledger.received_s + limits.total_s)
    with Alarm(job.services.watchdog, at_s, lambda: stalled(limits)):  # a client that reads no further holds nothing for ever
        await job.sink.finish(job.encoder.end(job.ledger.usage()))


def _entrant(job: Job) -> Entrant:
    """What it asks of the engines: an attempt for each choice, where one of them makes only one at a time."""
    name = job.model.name
    members = [each for each in job.services.registry.members.values() if each.model == name]
    attempts = 1 if all(each.engine.traits.choices for each in members) else job.request.n
    place = Place(name, job.tenant, job.priority)
    return Entrant(job.ledger.request_id, place, job.ledger.received_s + job.services.limits.total_s, attempts)


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
        if await _answer(job, choice, number, may_miss=number + 1 < _SCHEMA_TRIES):
            return


async def _answer(job: Job, choice: int, number: int, *, may_miss: bool) -> bool:
    """One answer, on as many engines as it takes; False where it missed its schema and was thrown away."""
    member, decision = first_engine(job)
    attempt = Attempt(begun(job, member, choice, number=number, may_miss=may_miss), member, decision)
    while True:
        try:
            return await attempt.run()
        except GatewayError as error:
            failure = error
        finally:
            attempt.progress.give_back()
        attempt = await next_attempt(attempt, failure)
