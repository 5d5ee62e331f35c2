"""Where an answer goes: to an engine at first, and after a failure to another, begun anew or gone on with, or to its end.

Invariant: an answer of which the client was given anything is only gone on with, never begun anew; and of two engines one has
closed its connection before the other is called.
"""

import asyncio
from functools import partial
from typing import NoReturn

from gateway.admission import Admission
from gateway.attempt import Attempt
from gateway.budget import WAIT_S
from gateway.errors import EngineRefused, GatewayError, PoisonRequest, Rejected
from gateway.events import NotRetried
from gateway.fleet.registry import Member
from gateway.job import Job
from gateway.progress import Progress, begun
from gateway.route import Route
from gateway.routing.policy import Decision
from gateway.routing.resume import Objection, objection
from gateway.routing.retry import Stopped
from gateway.routing.view import FleetView


async def first_engine(job: Job, route: Route, admission: Admission, *, let_in: bool) -> Decision:
    """Where a new answer goes, as soon as there is room for it; `let_in`: that was kept for it. Raises Rejected."""
    within_s = min(left_s(job), WAIT_S) if let_in else left_s(job)
    decision = await admission.room(job.model.name, route.first, within_s, first=let_in)
    if decision.engine is None:
        raise admission.refusal(job.model.name)
    return decision


async def next_attempt(failed: Attempt, error: GatewayError, admission: Admission) -> Attempt:
    """What follows a failed attempt. Raises `error`, as the client shall see it, where nothing may."""
    progress, job = failed.progress, failed.progress.job
    unable = failed.member.engine.kind in progress.tries.unable  # it was asked nothing: that is no failure
    stopped = _unable(failed) if unable else _stopped(failed, error)
    error = progress.tries.told(error, resumed=unable or failed.resumed)
    if stopped is not None:
        _end(failed, error, stopped)
    if unable and progress.tries.first is None:
        error = Rejected("No engine that has what the request asks for is ready.", reason="no_engine", retry_after_s=1.0)
    against = objection(progress.cut(left_s(job)), on=job.services.resume)
    if against is not None and progress.delivered:
        _end(failed, error, "resume_refused", against)
    where = partial(_where, progress, against is None and progress.begun)
    model = job.model.name
    while True:
        decision = await admission.room(model, where, min(left_s(job), WAIT_S), first=True)
        if decision.engine is None:
            _no_engine(failed, error, decision)
        if progress.tries.failed:  # else it is the first that is asked
            with admission.kept(model, decision.engine):
                progress.permit = await job.services.retries.permit(min(left_s(job), WAIT_S))
            if progress.permit is None:
                _end(failed, error, "budget")
        decision = where(admission.view(model))  # the engine may be gone since
        if decision.engine is not None:
            return _attempt(progress, job.services.registry.members[decision.engine], decision)
        progress.give_back()
        if not (decision.returns or decision.full) or left_s(job) <= 0:
            _no_engine(failed, error, decision)


def _stopped(failed: Attempt, error: GatewayError) -> Stopped | None:
    """Why nothing may follow a failure, and counts it."""
    progress, job = failed.progress, failed.progress.job
    rules, at_s = job.services.retries.rules, failed.age_s()
    stopped = progress.tries.after(failed.member.id, error, at_s, rules, begun=progress.begun, resumed=failed.resumed)
    if stopped is None and not job.may_retry:
        stopped = "no_retry"
    if stopped is None and job.services.pressure.saturated:
        stopped = "saturated"
    return stopped


def _unable(failed: Attempt) -> Stopped | None:
    """Whether no other kind of engine may have what this one lacks; what it was to go on with it has not."""
    progress, ledger = failed.progress, failed.progress.job.ledger
    if failed.resumed:
        progress.tries.resumes -= 1
        ledger.resumes -= 1
    members = [each for each in progress.job.services.registry.members.values() if each.model == progress.job.model.name]
    return "final" if all(each.engine.kind in progress.tries.unable for each in members) else None


def _where(progress: Progress, goes_on: bool, view: FleetView) -> Decision:
    """Where nothing was given, an answer that no engine can go on with may be begun anew."""
    route = progress.route
    if goes_on:
        decision = route.next(view, progress.passed_over(goes_on=True), progress.weights)
        if decision.engine is not None or progress.delivered:
            return decision
    return route.next(view, progress.passed_over(goes_on=False))


def _attempt(progress: Progress, member: Member, decision: Decision) -> Attempt:
    ledger = progress.job.ledger
    if progress.tries.failed:
        ledger.retries += 1
    if decision.why == "resume":
        ledger.resumes += 1
        progress.resume()
        return Attempt(progress, member, decision)
    job = progress.job
    anew = begun(
        job,
        progress.route,
        decision,
        progress.choice,
        number=progress.number,
        may_miss=progress.may_miss,
        tries=progress.tries,
    )
    anew.permit = progress.permit
    return Attempt(anew, member, decision)


def left_s(job: Job) -> float:
    """Seconds until the request's own deadline."""
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
