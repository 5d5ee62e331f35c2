"""One engine, whatever comes: no block too many, no step in vain, nothing left; and leaping gives what stepping gives."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.simulate import run
from lab.simulate.blocks import Blocks
from lab.simulate.model import EngineModel, Reserve
from lab.simulate.named import POLICIES
from lab.simulate.replica import Job, Replica
from lab.simulate.run import Outcome, simulate
from lab.traces import Prompt, Request, Trace

BLOCK = 16


class Watched(Replica):
    """Checks itself at every event."""

    def add(self, job: Job, now_s: float) -> float | None:
        due_s = super().add(job, now_s)
        self.check()
        return due_s

    def advance(self, now_s: float) -> float | None:
        due_s = super().advance(now_s)
        self.check()
        assert due_s is not None or not (self.waiting or self.running), "idle with work to do"
        return due_s

    def check(self) -> None:
        assert 0 <= self.blocks.held <= self.blocks.used <= self.blocks.capacity
        assert self.running <= self.model.most_running
        holders, idle = self.blocks._holders, self.blocks._idle
        assert {block for block, count in holders.items() if not count} == set(idle)
        private = sum(job.private for job in self._running)
        assert private == self.blocks.private
        assert sum(len(job.prompt.path) for job in self._running) == sum(holders.values())


class Stepping(Replica):
    """Never leaps."""

    def _last_of_leap(self) -> int:
        super()._last_of_leap()
        return self._step + 1


def load(seed: int, count: int, capacity: int) -> Trace:
    """Prompts of a tree of prefixes, some as large as the engine."""
    rng = random.Random(seed)
    paths: list[tuple[int, ...]] = [()]
    requests, now_s = list[Request](), 0.0
    for number in range(count):
        now_s += rng.expovariate(rng.choice([0.5, 5, 500]))
        base = rng.choice(paths)
        path = (*base[: rng.randrange(len(base) + 1)], *(number * 1000 + each for each in range(rng.randrange(0, capacity // 2))))
        path = path[: capacity - 2]
        tokens = max(1, len(path) * BLOCK - rng.randrange(BLOCK))
        output = rng.randrange(1, max(2, (capacity * BLOCK - tokens) if rng.random() < 0.2 else 3 * BLOCK))
        output = max(1, min(output, capacity * BLOCK - tokens))
        paths.append(path)
        requests.append(Request(Prompt(number, tokens, path, number), output, now_s))
    return Trace("tree", tuple(requests), BLOCK)


def model(capacity: int, reserve: Reserve, running: int = 8, step_tokens: int = 64) -> EngineModel:
    return EngineModel(
        blocks=capacity, block_tokens=BLOCK, reserve=reserve, most_running=running, step_tokens=step_tokens, context_s=3e-5
    )


def driven(kind: type[Replica], trace: Trace, engines: int, engine: EngineModel) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "Replica", kind)
        return simulate(trace, engines, POLICIES["least_outstanding"], engine)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 40),
    engine=st.builds(
        model,
        st.integers(4, 40),
        st.sampled_from(["prompt", "output"]),
        running=st.integers(1, 8),
        step_tokens=st.integers(1, 300),
    ),
)
def test_blocks_are_never_more_than_there_are_and_all_work_is_done(seed: int, count: int, engine: EngineModel) -> None:
    outcome = driven(Watched, load(seed, count, engine.blocks), 2, engine)
    assert len(outcome.jobs) == count
    assert not outcome.too_long
    for job in outcome.jobs:
        assert job.arrived_s < job.first_s <= job.done_s
        assert (job.first_s == job.done_s) == (job.request.output_tokens == 1)
        assert 0 <= job.cached_tokens < job.prompt.tokens
    for replica in outcome.replicas:
        assert (replica.blocks.held, replica.blocks.private, replica.running, len(replica.waiting)) == (0, 0, 0, 0)
        assert (replica._context, replica._answering) == (0, 0)
        assert engine.reserve == "prompt" or not replica.preemptions


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), capacity=st.integers(4, 40), reserve=st.sampled_from(["prompt", "output"]))
def test_leaping_gives_what_stepping_gives(seed: int, capacity: int, reserve: Reserve) -> None:
    trace, engine = load(seed, 30, capacity), model(capacity, reserve)
    leapt, stepped = driven(Watched, trace, 2, engine), driven(Stepping, trace, 2, engine)
    for one, other in zip(leapt.jobs, stepped.jobs, strict=True):
        assert (one.engine, one.cached_tokens, one.preempted) == (other.engine, other.cached_tokens, other.preempted)
        assert [one.first_s, one.done_s] == pytest.approx([other.first_s, other.done_s])


def test_the_newest_is_put_back_and_computed_again() -> None:
    """Two answers that fit as prompts and not as answers."""
    requests = tuple(Request(Prompt(each, 2 * BLOCK - 1, (), each), 3 * BLOCK, each * 1e-3) for each in range(2))
    (replica,) = (outcome := driven(Watched, Trace("two", requests, BLOCK), 1, model(6, "prompt"))).replicas
    assert [job.preempted for job in outcome.jobs] == [0, 1]
    assert replica.preemptions == 1
    first, second = outcome.jobs
    assert second.first_s < first.done_s < second.done_s


def test_what_was_not_computed_is_not_cached() -> None:
    """An answer grows into the blocks of a prompt that is half prefilled: only the computed half of its blocks may be found."""
    replica = Watched(model(8, "prompt", step_tokens=17))
    warm, long = tuple(range(2)), tuple(range(6))
    jobs = [
        Job(Request(Prompt(0, 2 * BLOCK, warm, 0), 1, 0.0), 0.0),
        Job(Request(Prompt(1, 2 * BLOCK - 3, (), 1), 40, 0.0), 0.0),
        Job(Request(Prompt(2, 6 * BLOCK, long, 2), 2, 0.0), 0.0),
    ]
    due_s = replica.add(jobs[0], 0.0)
    while due_s is not None:
        due_s = replica.advance(due_s)
    due_s = replica.add(jobs[1], 10.0)
    while jobs[1].first_s < 0 and due_s is not None:
        due_s = replica.advance(due_s)
    replica.blocks.capacity = replica.blocks.used + 5  # so that the prompt fits, and nothing after it
    cut_s = replica.add(jobs[2], jobs[1].first_s)
    due_s = due_s if cut_s is None else cut_s
    while not replica.preemptions and due_s is not None:
        due_s = replica.advance(due_s)
    assert jobs[2].first_s < 0
    assert 2 <= replica.blocks.cached(long) <= jobs[2].computed // BLOCK < 5
    while due_s is not None:
        due_s = replica.advance(due_s)
    assert jobs[2].cached_tokens == 2 * BLOCK
    assert jobs[2].done_s > jobs[1].done_s > 0


def test_a_step_takes_what_the_model_says() -> None:
    engine = EngineModel(step_s=1, decode_s=0.1, context_s=0.01, prefill_s=0.001, attention_s=0.0001, step_tokens=8)
    (job,) = simulate(Trace("one", (Request(Prompt(0, 10, (), 0), 3, 5.0),)), 1, POLICIES["round_robin"], engine).jobs
    chunks_s = 1 + 0.008 + 0.0001 * 8 * 4 + 1 + 0.002 + 0.0001 * 2 * 9
    assert job.first_s == pytest.approx(5 + chunks_s)
    assert job.done_s == pytest.approx(job.first_s + 2 * 1.1 + 0.01 * 11 + 0.01 * 12)


def test_the_end_of_a_prompt_leaves_the_cache_before_its_beginning() -> None:
    blocks = Blocks(4)
    assert blocks.take((1, 2, 3), 0) == 0
    blocks.give_back((1, 2, 3), 0, 3)
    assert blocks.take((9,), 2) == 0
    assert (blocks.cached((1, 2, 3)), blocks.evicted) == (1, 2)
    assert blocks.take((1, 5), 1) is None
    assert (blocks.used, blocks.held) == (4, 3)
    assert not blocks.grow() or blocks.cached((1,)) == 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=6), st.integers(0, 3), st.booleans()), max_size=40))
def test_what_is_cached_is_closed_under_prefixes(steps: Sequence[tuple[list[int], int, bool]]) -> None:
    blocks, held = Blocks(10), list[tuple[tuple[int, ...], int]]()
    for choices, private, release in steps:
        path = tuple(int("1" + "".join(map(str, choices[: length + 1]))) for length in range(len(choices)))
        if release and held:
            blocks.give_back(*held.pop(0), 99)
        elif blocks.take(path, private) is not None:
            held.append((path, private))
        here = blocks._holders
        assert all(len(str(block)) == 2 or int(str(block)[:-1]) in here for block in here)
        assert blocks.used <= 10
