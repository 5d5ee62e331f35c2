"""What a request costs on an engine, term by term, and how the speed of prefill is learned."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.cost import Load, Need, eviction_s, kappa, memory_s, standing_s, terms
from gateway.routing.prefill import PrefillModel, work
from gateway.routing.reuse import ReuseGaps

LOAD = Load(wait_s=0.0, work_s=0.0, held_units=0, capacity_units=100, free_units=100, tail_chance=0.0, hold_s=10.0)
NEED = Need(units=10, matched=0, pinned=0, answer_units=2, prefill_s=1.0, unit_s=0.1)


@pytest.mark.parametrize(
    ("work_s", "engines", "most", "expected"),
    [
        (0.0, 8, 12.0, 1.29),
        (240.0, 8, 12.0, 1.29 * 2**0.7),
        (30.0, 1, 12.0, 1.29 * 2**0.7),
        (480.0, 8, 4.0, 4.0),
        (9e9, 8, 99.0, 1.29 * 20**0.7),
        (240.0, 8, 1.0, 1.0),
        (0.0, 0, 12.0, 1.29),
    ],
)
def test_a_second_of_prefill_costs_more_in_a_busy_fleet(work_s: float, engines: int, most: float, expected: float) -> None:
    assert kappa(work_s, engines, most) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("load", "need", "expected"),
    [
        ({}, {}, 0.0),
        ({"held_units": 88}, {}, 0.0),
        ({"held_units": 90}, {}, 10.0 * 2 * 2 / 90),
        ({"held_units": 90}, {"pinned": 2}, 0.0),  # what others hold of it already takes no more room
        ({"held_units": 10}, {"units": 900}, 40.0),  # four holds at most
        ({"held_units": 0}, {"units": 900}, 0.0),  # nobody who would make room
    ],
)
def test_the_wait_for_memory(load: dict[str, int], need: dict[str, int], expected: float) -> None:
    assert memory_s(LOAD._replace(**load), NEED._replace(**need)) == pytest.approx(expected)


@pytest.mark.parametrize(("free", "matched", "expected"), [(10, 0, 0.0), (4, 0, 0.3), (4, 8, 0.0), (0, 8, 0.1)])
def test_what_is_pushed_out_is_priced_by_the_chance_that_it_is_wanted(free: int, matched: int, expected: float) -> None:
    load = LOAD._replace(free_units=free, tail_chance=0.5)
    assert eviction_s(load, NEED._replace(matched=matched)) == pytest.approx(expected)


@pytest.mark.parametrize(("matched", "expected"), [(0, 0.5), (4, 0.5), (5, 0.0), (10, 0.0)])
def test_standing_work_counts_for_what_begins_there(matched: int, expected: float) -> None:
    assert standing_s(LOAD._replace(work_s=30.0), NEED._replace(matched=matched)) == pytest.approx(expected)


def test_the_cost_is_the_sum() -> None:
    found = terms(LOAD._replace(wait_s=3.0, work_s=6.0, held_units=95, free_units=0, tail_chance=1.0), NEED, 2.0)
    assert found.total_s == pytest.approx(3.0 + 10.0 * 2 * 7 / 95 + 2.0 * (1.0 + 1.0) + 0.1)


@pytest.mark.parametrize(
    ("busy", "own_s"), [(1.0, 0.25), (1.29, 1.29 * 0.25), (2.0, 2.0 - 0.75 * 1.29**2 / 2), (12.0, 12.0 - 0.75 * 1.29**2 / 12)]
)
def test_what_is_made_for_others_too_is_not_all_charged_to_one_while_engines_would_rest(busy: float, own_s: float) -> None:
    assert terms(LOAD, NEED._replace(lent=0.75), busy).total_s == pytest.approx(own_s)


@given(st.lists(st.floats(0, 1e6), max_size=50), st.floats(0, 1e6), st.floats(0, 1e6))
def test_the_older_the_less_likely(gaps: list[float], one: float, other: float) -> None:
    reuse = ReuseGaps()
    for gap_s in gaps:
        reuse.seen(gap_s)
    early, late = sorted((one, other))
    assert 0.0 < reuse.chance_after(late) <= reuse.chance_after(early) <= 1.0
    assert reuse.chance_after(0.0) == pytest.approx(1.0)
    assert reuse.chance_after(float("inf")) == 0.0
    assert reuse.chance_after(5.0 - float("inf")) == 0.0, "as a router asks where nothing can leave"


def test_gaps_are_learned_and_forgotten() -> None:
    reuse = ReuseGaps()
    for _ in range(2000):
        reuse.seen(3.0)
    assert reuse.chance_after(100.0) < 0.02
    for _ in range(8000):
        reuse.seen(300.0)
    assert reuse.chance_after(100.0) > 0.95


@dataclass(frozen=True)
class Machine:
    """An engine with such a speed: seconds a new token, a new token x token of context, a chunk."""

    p: float
    q: float
    step_s: float

    def seconds(self, new: int, context: int) -> float:
        return self.p * new + self.q * new * (context + new / 2) + self.step_s * -(-new // 8192)


MACHINES = [Machine(7.8e-5, 1.5e-9, 0.018), Machine(3e-4, 4e-9, 0.05), Machine(2e-5, 6e-10, 0.006), Machine(1e-3, 2e-8, 0.3)]


def prompts(chance: random.Random, count: int) -> list[tuple[int, int]]:
    return [(int(chance.lognormvariate(7, 1.5)) + 1, chance.choice([0, 2000, 30_000, 100_000])) for _ in range(count)]


@pytest.mark.parametrize("machine", MACHINES)
def test_speed_is_learned_from_first_tokens(machine: Machine) -> None:
    chance, model = random.Random(3), PrefillModel()
    for new, context in prompts(chance, 400):
        model.observe("a", work(new, context), machine.seconds(new, context) * chance.uniform(0.8, 1.2), idle=True)
    for new, context in [(500, 0), (8192, 0), (8192, 60_000), (700, 100_000)]:
        assert model.seconds("a", work(new, context)) == pytest.approx(machine.seconds(new, context), rel=0.15)


def test_work_that_was_mixed_is_learned_as_one() -> None:
    """Two prompts at once: one has all the time, and the other none."""
    chance, model, machine = random.Random(4), PrefillModel(), MACHINES[0]
    for (new, context), (other, _) in zip(prompts(chance, 300), prompts(chance, 300), strict=True):
        model.observe("a", work(new, context), machine.seconds(new, context) + machine.seconds(other, 0), idle=False)
        model.observe("a", work(other, 0), 0.0, idle=True)
    assert model.seconds("a", work(8192, 8192)) == pytest.approx(machine.seconds(8192, 8192), rel=0.1)


def test_an_engine_that_is_never_idle_teaches_as_well() -> None:
    chance, model, machine = random.Random(5), PrefillModel(), MACHINES[1]
    for new, context in prompts(chance, 600):
        model.observe("a", work(new, context), machine.seconds(new, context), idle=False)
    assert model.seconds("a", work(8192, 0)) == pytest.approx(machine.seconds(8192, 0), rel=0.2)


def test_a_slow_engine_among_fast_ones_is_known() -> None:
    chance, model, machine = random.Random(6), PrefillModel(), MACHINES[0]
    for new, context in prompts(chance, 900):
        model.observe("fast", work(new, context), machine.seconds(new, context), idle=True)
        model.observe("slow", work(new, context), 3 * machine.seconds(new, context), idle=True)
    ratio = model.seconds("slow", work(8192, 0)) / model.seconds("fast", work(8192, 0))
    assert ratio == pytest.approx(3.0, rel=0.15)
    model.forget("slow")
    assert model.factor("slow") == 1.0


def test_a_stall_or_a_wait_for_memory_ruins_nothing() -> None:
    chance, model, machine = random.Random(7), PrefillModel(), MACHINES[0]
    for number, (new, context) in enumerate(prompts(chance, 800)):
        if number % 20 == 0:
            model.observe("a", work(new, context), 60.0, idle=True)
        elif number % 3 == 0:
            model.observe("a", work(new, context), 30.0, idle=False)
            model.pass_over("a")
        else:
            model.observe("a", work(new, context), machine.seconds(new, context), idle=True)
    assert model.seconds("a", work(8192, 8192)) == pytest.approx(machine.seconds(8192, 8192), rel=0.5)
    assert model.token_s > machine.p / 3  # not all is believed to be the step


@given(st.lists(st.tuples(st.integers(1, 200_000), st.integers(0, 200_000), st.floats(0, 1e4), st.booleans()), max_size=60))
def test_predictions_are_times_whatever_is_seen(seen: list[tuple[int, int, float, bool]]) -> None:
    model = PrefillModel()
    for new, context, took_s, idle in seen:
        model.observe("a", work(new, context), took_s, idle=idle)
        assert 0.0 < model.seconds("a", work(1, 0)) < model.seconds("a", work(9000, 10)) < 1e6
