"""Where an answer goes: to an engine at first, and after a failure to another, begun anew or gone on with, or to its end.

Invariant: an answer of which the client was given anything is only gone on with, never begun anew; and of two engines one has
closed its connection before the other is called.
"""

import asyncio
from typing import NoReturn

from gateway.attempt import Attempt
from gateway.budget import WAIT_S
from gateway.errors import EngineRefused, GatewayError, PoisonRequest, Rejected
from gateway.events import NotRetried
from gateway.fleet.registry import Member
from gateway.fleet.standing import RETURNS_S
from gateway.job import Job
from gateway.progress import Progress, begun
from gateway.routing.policy import Decision, choose
from gateway.routing.resume import Objection, objection
from gateway.routing.retry import Stopped


def first_engine(job: Job) -> tuple[Member, Decision]:
    """Where a new answer goes. Raises Rejected."""
    decision = choose(job.services.registry.view(job.model.name))
    if decision.engine is not None:
        return job.services.registry.members[decision.engine], decision
    if decision.wait_s is not None:
        raise Rejected("Every engine of the model is busy.", reason="engines_busy", retry_after_s=decision.wait_s)
    raise Rejected("No engine is ready.", reason="no_engine", retry_after_s=1.0)


async def next_attempt(failed: Attempt, error: GatewayError) -> Attempt:
    """What follows a failed attempt. Raises `error`, as the client shall see it, where nothing may."""
    progress, job = failed.progress, failed.progress.job
    stopped = progress.tries.after(failed.member.id, error, failed.age_s(), job.services.retries.rules)
    if stopped is None and not job.may_retry:
        stopped = "no_retry"
    if stopped is None and job.services.pressure.saturated:
        stopped = "saturated"
    if stopped is not None:
        _end(failed, error, stopped)
    left_s = _left_s(job)
    against = objection(progress.cut(left_s), on=job.services.resume)
    if against is not None and progress.delivered:
        _end(failed, error, "resume_refused", against)
    goes_on = against is None and progress.begun
    while True:
        decision = await _awaited(progress, goes_on)
        if decision.engine is None:
            _no_engine(failed, error, decision)
        progress.permit = await job.services.retries.permit(min(left_s, WAIT_S))
        if progress.permit is None:
            _end(failed, error, "budget")
        decision = _choose(progress, goes_on)  # others may have gone there, or it may be gone, since
        if decision.engine is not None:
            return _attempt(progress, job.services.registry.members[decision.engine], decision)
        progress.give_back()
        left_s = _left_s(job)
        if not decision.returns or left_s <= 0:
            _no_engine(failed, error, decision)


async def _awaited(progress: Progress, goes_on: bool) -> Decision:
    """Where it may go. While that is nowhere, and an engine may be back at once, this waits until a probe has asked that engine:
    it may only have lost a connection, and no answer shall be lost for that moment."""
    registry = progress.job.services.registry
    try:
        async with asyncio.timeout(min(RETURNS_S, _left_s(progress.job))):
            while (decision := _choose(progress, goes_on)).engine is None and decision.returns:
                await registry.changed()
    except TimeoutError:
        return _choose(progress, goes_on)
    return decision


def _choose(progress: Progress, goes_on: bool) -> Decision:
    """Where nothing was given, an answer that no engine can go on with may be begun anew."""
    view, avoid = progress.job.services.registry.view(progress.job.model.name), progress.tries.failed
    if goes_on:
        decision = choose(view, avoid=avoid, weights=progress.weights)
        if decision.engine is not None or progress.delivered:
            return decision
    return choose(view, avoid=avoid)


def _attempt(progress: Progress, member: Member, decision: Decision) -> Attempt:
    ledger = progress.job.ledger
    ledger.retries += 1
    if decision.why == "resume":
        ledger.resumes += 1
        progress.resume()
        return Attempt(progress, member, decision)
    job = progress.job
    anew = begun(job, member, progress.choice, number=progress.number, may_miss=progress.may_miss, tries=progress.tries)
    anew.permit = progress.permit
    return Attempt(anew, member, decision)


def _left_s(job: Job) -> float:
    return job.ledger.received_s + job.services.limits.total_s - asyncio.get_running_loop().time()


def _no_engine(failed: Attempt, error: GatewayError, decision: Decision) -> NoReturn:
    """There is no other engine now. Where one only rests, the client may come back as soon as its rest is over."""
    tries = failed.progress.tries
    if tries.wait_s is not None and decision.wait_s is not None:
        tries.wait_s = min(tries.wait_s, decision.wait_s)
    _end(failed, error, "no_engine")


def _end(failed: Attempt, error: GatewayError, stopped: Stopped, against: Objection | None = None) -> NoReturn:
    """Tells why the answer ends here. Of engines that had no room, the client is told when the first may have some."""
    job, tries = failed.progress.job, failed.progress.tries
    job.services.bus.emit(NotRetried(job.ledger.request_id, failed.number, stopped, against, job.model.name))
    if stopped == "poison":
        raise PoisonRequest("Two engines failed on this request: it is given to no other.") from error
    if isinstance(error, EngineRefused) and tries.wait_s is not None:
        error.wait_s = tries.wait_s
    raise error
