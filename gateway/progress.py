"""One choice's answer over all its attempts: what was read and given of it, and what is left to ask an engine for."""

import msgspec

from engines.base import Traits, Work
from gateway.budget import Permit
from gateway.course import Course, course_of
from gateway.job import Job
from gateway.made import Made
from gateway.reading import work_for
from gateway.route import Route
from gateway.routing.policy import Decision, choose
from gateway.routing.resume import Cut, objection, penalties
from gateway.routing.retry import Tries


class Progress(msgspec.Struct):
    """`whole` is all of the work, `work` what is left of it, for the next attempt; `weights` those of the engine that began.
    `number` counts the answers of this choice that were thrown away for their schema; with `may_miss` this one may be too. Times
    are the loop's: `first_s` is when the first delta was read that a client sees, `first_output_s` the first that is no thought.
    `made` is what the attempts that are over made of it."""

    job: Job
    route: Route
    choice: int
    number: int
    may_miss: bool
    course: Course
    whole: Work
    work: Work
    weights: str
    traits: Traits
    tries: Tries
    delivered: bool = False
    first_s: float | None = None
    first_output_s: float | None = None
    made: Made = Made()
    permit: Permit | None = None

    @property
    def begun(self) -> bool:
        """Whether anything of an answer was read."""
        return self.delivered or self.first_s is not None

    def cut(self, left_s: float) -> Cut:
        """What tells whether another engine can go on."""
        return Cut(
            self.job.request,
            constrained=self.whole.constraint is not None,
            takes_ids=self.traits.takes_ids,
            kept=self.course.resumable,
            tokens=len(self.work.ids),
            resumes=self.tries.resumes,
            left_s=left_s,
            same_penalties=self.traits.same_penalties,
            ended=self.course.went_on,
        )

    def movable(self, engine: str, left_s: float) -> bool:
        """Whether an attempt that is given up on this engine could be followed by one on another, as things are."""
        job, tries = self.job, self.tries
        services = job.services
        if not job.may_retry or len(tries.failed) + 1 >= services.retries.rules.attempts or services.pressure.saturated:
            return False
        if self.delivered and objection(self.cut(left_s), on=services.resume) is not None:
            return False
        view = services.registry.view(job.model.name)
        decision = choose(
            view, avoid={*self.passed_over(goes_on=self.delivered), engine}, weights=self.weights if self.delivered else None
        )
        return decision.engine is not None and decision.why != "panic"

    def passed_over(self, *, goes_on: bool) -> set[str]:
        """The engines that are no choice: they failed, lack what is asked for, or count its penalties otherwise than the one that
        began."""
        counts = penalties(self.job.request) if goes_on else set[str]()
        members = [each for each in self.job.services.registry.members.values() if each.model == self.job.model.name]
        unable = [
            each.id
            for each in members
            if each.engine.kind in self.tries.unable or not counts <= each.engine.traits.same_penalties
        ]
        return {*self.tries.failed, *unable}

    def resume(self) -> None:
        """The work is what is left of it, after what was read."""
        self.tries.resumes += 1
        course = self.course
        rest = course.continued(self.whole) if course.must_go_on else course.resumed(self.whole)
        self.work = rest if rest is not None else self.work

    def give_back(self) -> None:
        """The room that this retry had, if it was one, is another's."""
        if self.permit is not None:
            self.permit.give_back()


def begun(
    job: Job, route: Route, decision: Decision, choice: int, *, number: int, may_miss: bool, tries: Tries | None = None
) -> Progress:
    """A fresh answer, for an engine like the one that was chosen. Each that is thrown away for its schema has another seed."""
    engine = str(decision.engine)
    traits = job.services.registry.members[engine].engine.traits
    sampled = job.request.sampling.temperature != 0  # greedy answers are all the same
    work = _work(job, choice + number * job.request.n)
    return Progress(
        job,
        route,
        choice,
        number,
        may_miss=may_miss and sampled and job.model.rules.on_schema_miss == "retry",
        course=course_of(job, choice, traits),
        whole=work,
        work=work,
        weights=job.services.registry.weights(engine),
        traits=traits,
        tries=tries or Tries(deaths=job.ledger.deaths),
    )


def _work(job: Job, choice: int) -> Work:
    prompt, rendered = job.prompt, job.model.rendered
    if prompt is None or rendered is None:
        return Work(request=job.request)
    return work_for(rendered, job.request, prompt, choice=choice)
