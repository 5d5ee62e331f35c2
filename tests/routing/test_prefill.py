"""How soon the speed of an engine is known, and what does not mislead: prior seconds against seconds that were seen."""

import random

import pytest

from gateway.routing.prefill import PrefillModel, work


def taught(model: PrefillModel, token_s: float, fixed_s: float, prompts: list[int], *, engine: str = "e") -> None:
    for tokens in prompts:
        model.observe(engine, work(tokens, 0), token_s * tokens + fixed_s, idle=True)


@pytest.mark.parametrize("token_s", [2e-5, 1e-4, 2e-3, 2e-2])
def test_eight_prompts_tell_how_slow_an_engine_is(token_s: float) -> None:
    model, chance = PrefillModel(), random.Random(2)
    taught(model, token_s, 0.0, [chance.randrange(400, 4000) for _ in range(8)])
    for tokens in (400, 1500, 4000):
        assert model.seconds("e", work(tokens, 0)) == pytest.approx(token_s * tokens, rel=0.35)


def test_a_first_prompt_that_hangs_is_no_measure() -> None:
    model = PrefillModel()
    model.observe("e", work(500, 0), 20.0, idle=True)
    taught(model, 1e-4, 0.02, [500] * 2)
    assert 0.07 < model.seconds("e", work(500, 0)) < 0.2
    taught(model, 1e-4, 0.02, [500] * 20)
    assert model.seconds("e", work(500, 0)) == pytest.approx(0.07, rel=0.35)


def test_a_prompt_that_hangs_later_counts_as_three() -> None:
    model = PrefillModel()
    taught(model, 1e-4, 0.02, [500] * 100)
    before_s = model.seconds("e", work(500, 0))
    model.observe("e", work(500, 0), 600.0, idle=True)
    assert model.seconds("e", work(500, 0)) < 1.2 * before_s


def test_an_engine_that_is_slower_than_the_others_has_a_factor_of_its_own() -> None:
    model = PrefillModel()
    for _ in range(200):
        taught(model, 1e-4, 0.0, [4000], engine="quick")
        taught(model, 3e-4, 0.0, [4000], engine="slow")
    quick_s, slow_s = (model.seconds(engine, work(4000, 0)) for engine in ("quick", "slow"))
    assert slow_s / quick_s == pytest.approx(3, rel=0.35)
    model.forget("slow")
    assert model.factor("slow") == 1.0
