"""The counters of a render on their own: the clock is looked at now and then, and steps that are slow end in time."""

import pytest

from gateway.prompt.budget import Budget, Limits, OverBudget


class Clock:
    """Each look at it takes so many seconds."""

    def __init__(self, look_s: float) -> None:
        self.now_s = 100.0
        self.looks = 0
        self._look_s = look_s

    def __call__(self) -> float:
        self.looks += 1
        self.now_s += self._look_s
        return self.now_s


def test_slow_steps_are_stopped_by_the_clock() -> None:
    clock = Clock(look_s=0.3)
    budget = Budget(Limits(wall_s=1.0), seconds=clock)
    with pytest.raises(OverBudget, match="it takes more than 1 s"):
        for _ in range(1000):
            budget.step()
    assert clock.looks == 1 + 4  # at 0.3, 0.6, 0.9 and 1.2 s


def test_the_clock_is_not_read_at_each_step() -> None:
    clock = Clock(look_s=0.0)
    budget = Budget(Limits(), seconds=clock)
    for _ in range(1600):
        budget.step()
    assert clock.looks == 1 + 100


def test_without_a_clock_only_steps_count() -> None:
    budget = Budget(Limits(steps=100, message_steps=10), messages=2)
    for _ in range(120):
        budget.step()
    with pytest.raises(OverBudget, match="more than 120 steps"):
        budget.step()
