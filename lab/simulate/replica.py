"""One engine that batches continuously: who waits, who runs, what it holds, and when it looks at its queue again.

It knows no clock: whoever drives it says the moment. `add` and `advance` answer with the moment at which it wants to be advanced
next. Between two such moments nothing changes that anybody could see, however many tokens it makes.
"""

from collections import deque
from heapq import heappop, heappush

from lab.simulate.blocks import Blocks
from lab.simulate.model import EngineModel, Leap
from lab.traces import Prompt, Request


class Job:
    """A request in the simulation, with what became of it: moments in seconds, -1 until they come."""

    __slots__ = (
        "arrived_s",
        "cached_tokens",
        "computed",
        "context",
        "done_s",
        "engine",
        "finish_step",
        "first_s",
        "generated",
        "growth_step",
        "preempted",
        "private",
        "request",
    )

    def __init__(self, request: Request, arrived_s: float) -> None:
        self.request = request
        self.arrived_s = arrived_s
        self.engine = -1
        self.first_s = self.done_s = -1.0
        self.cached_tokens = 0
        self.preempted = 0
        self.generated = 0  # tokens made before it was last admitted; while it answers, see `finish_step`
        self.context = 0  # tokens to compute before it can answer, those that were cached included
        self.computed = 0  # of these
        self.private = 0  # blocks that it holds for itself
        self.finish_step = -1  # the engine's step that ends with its last token
        self.growth_step = -1  # and the one before which it needs another block

    @property
    def prompt(self) -> Prompt:
        """What a policy may see of it."""
        return self.request.prompt


class Replica:
    """An engine in the state between two steps."""

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.blocks = Blocks(model.blocks)
        self.waiting: deque[Job] = deque()
        self.first: list[Job] = []  # that got their first token at the last advance
        self.finished: list[Job] = []  # that ended at the last advance
        self.busy_s = 0.0
        self.prefill_busy_s = 0.0
        self.preemptions = 0
        self._running: dict[Job, None] = {}  # in the order of their admission
        self._prefilling: deque[Job] = deque()
        self._ends: list[tuple[int, int, Job]] = []  # of the answers: a heap of their last steps
        self._growths: list[tuple[int, int, Job]] = []  # and of the steps before which each needs another block
        self._answering = 0
        self._context = 0  # tokens that the answers read
        self._step = 0
        self._count = 0
        self._prefilled: list[Job] = []  # by the step that runs
        self._leap: Leap | None = None
        self._blocked = False  # nobody is admitted before someone ends

    @property
    def running(self) -> int:
        """Requests that are prefilled or answered."""
        return len(self._running)

    def add(self, job: Job, now_s: float) -> float | None:
        """Takes a request into the queue. The moment to advance it, where that has changed."""
        self.waiting.append(job)
        if self._leap is None:
            return self._begin(now_s)
        if self._prefilled or self._blocked or self._leap.steps == 1:
            return None
        steps = self._leap.steps_until(now_s)
        if steps == self._leap.steps:
            return None
        self._cut(steps)
        return self._leap.end_s

    def advance(self, now_s: float) -> float | None:
        """Ends the step or the leap that runs. The moment to advance it next, None when it has nothing to do."""
        leap = self._leap
        if leap is None:
            return None
        self.first, self.finished = [], []
        self.busy_s += leap.end_s - leap.start_s
        self._step += leap.steps
        self._context += self._answering * leap.steps
        self._leap = None
        while self._ends and self._ends[0][0] <= self._step:
            step, _, job = heappop(self._ends)
            if job.finish_step == step:
                self._answered(job)
        for job in self._prefilled:
            self._answer(job)
        self._prefilled = []
        for job in self.first:
            job.first_s = now_s
        for job in self.finished:
            job.done_s = now_s
        return self._begin(now_s)

    def _cut(self, steps: int) -> None:
        leap = self._leap
        if leap is not None:
            self._leap = Leap(leap.start_s, leap.first_s, leap.growth_s, steps)

    def _answer(self, job: Job) -> None:
        """A request that is prefilled has a token."""
        if not job.generated:
            self.first.append(job)
        job.generated += 1
        left = job.request.output_tokens - job.generated
        if left < 1:
            self._end(job)
            return
        job.finish_step = self._step + left
        self._answering += 1
        self._context += job.context + 1
        self._count += 1
        heappush(self._ends, (job.finish_step, self._count, job))
        self._next_growth(job)

    def _next_growth(self, job: Job) -> None:
        """Notes when the answer has filled its blocks."""
        if self.model.reserve == "output":
            return
        left = job.finish_step - self._step
        tokens = job.prompt.tokens + job.request.output_tokens - left
        room = (len(job.prompt.path) + job.private) * self.model.block_tokens - tokens
        job.growth_step = self._step + room if room < left else -1
        if room < left:
            self._count += 1
            heappush(self._growths, (job.growth_step, self._count, job))

    def _answered(self, job: Job) -> None:
        self._answering -= 1
        self._context -= job.prompt.tokens + job.request.output_tokens
        job.finish_step = job.growth_step = -1
        self._end(job)

    def _end(self, job: Job) -> None:
        self._leave(job, len(job.prompt.path))
        self.finished.append(job)

    def _leave(self, job: Job, computed: int) -> None:
        self.blocks.give_back(job.prompt.path, job.private, computed)
        job.private = 0
        del self._running[job]

    def _begin(self, now_s: float) -> float | None:
        """Plans the next step, or as many as nothing will change in."""
        if not self._grow():
            self._admit()
        if self._prefilling:
            work_s = self._prefill()
            self._leap = Leap(now_s, self.model.decode_step_s(self._answering, self._context) + work_s, 0.0, 1)
            return self._leap.end_s
        if not self._answering:
            return None
        steps = self._last_of_leap() - self._step
        first_s = self.model.decode_step_s(self._answering, self._context)
        self._leap = Leap(now_s, first_s, self.model.context_s * self._answering, steps)
        return self._leap.end_s

    def _last_of_leap(self) -> int:
        """The step after which an answer ends or wants a block."""
        while self._ends[0][2].finish_step != self._ends[0][0]:
            heappop(self._ends)
        return min(self._ends[0][0], self._growths[0][0]) if self._growths else self._ends[0][0]

    def _admit(self) -> None:
        """Takes requests in, first come first served, while the next step has room for some of their prompts."""
        pending = sum(job.context - job.computed for job in self._prefilling)
        budget, most = self._prefill_tokens(), self.model.most_running
        while self.waiting and len(self._running) < most and pending < budget:
            job = self.waiting[0]
            tokens = job.prompt.tokens + job.generated
            whole = tokens - job.generated + job.request.output_tokens if self.model.reserve == "output" else tokens + 1
            private = max(self.model.blocks_for(whole) - len(job.prompt.path), 0)
            cached = self.blocks.take(job.prompt.path, private)
            if cached is None:
                self._blocked = True
                return
            self.waiting.popleft()
            self._running[job] = None
            job.private, job.context = private, tokens
            job.computed = min(cached * self.model.block_tokens, tokens - 1)
            if not job.preempted:
                job.cached_tokens = min(job.computed, job.prompt.tokens - 1)
            self._prefilling.append(job)
            pending += tokens - job.computed
        self._blocked = len(self._running) >= most

    def _prefill_tokens(self) -> int:
        return max(self.model.step_tokens - self._answering, 1)

    def _prefill(self) -> float:
        """Puts the oldest prompts' next chunks into the step. The seconds that they add to it."""
        budget, work_s = self._prefill_tokens(), 0.0
        while self._prefilling and budget:
            job = self._prefilling[0]
            chunk = min(budget, job.context - job.computed)
            work_s += self.model.prefill_work_s(chunk, job.computed)
            job.computed += chunk
            budget -= chunk
            if job.computed == job.context:
                self._prefilled.append(self._prefilling.popleft())
        self.prefill_busy_s += work_s
        return work_s

    def _grow(self) -> bool:
        """Gives each answer that has filled its blocks another. Whether that put a request back into the queue."""
        put_back = False
        while self._growths and self._growths[0][0] <= self._step:
            step, _, job = heappop(self._growths)
            while job.growth_step == step:
                if self.blocks.grow():
                    job.private += 1
                    self._next_growth(job)
                    break
                self._put_back(next(reversed(self._running)))
                put_back = True
        return put_back

    def _put_back(self, job: Job) -> None:
        """Takes the blocks of a request, which will be computed again when it is admitted again."""
        if job.finish_step > 0:
            job.generated = job.request.output_tokens - (job.finish_step - self._step)
            self._answering -= 1
            self._context -= job.prompt.tokens + job.generated
            job.finish_step = job.growth_step = -1
        else:
            self._prefilling.remove(job)
        self._leave(job, min(job.computed // self.model.block_tokens, len(job.prompt.path)))
        job.preempted += 1
        self.preemptions += 1
        self.waiting.appendleft(job)
        self._blocked = False
