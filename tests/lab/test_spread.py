"""Requests that share one system prompt go to all engines, though any engine that has it would do."""

import random
from collections import Counter

import pytest

from lab.simulate.model import EngineModel
from lab.simulate.named import POLICIES
from lab.simulate.run import simulate
from lab.traces import BLOCK_TOKENS, Prompt, Request, Trace

ENGINES = 8
SYSTEM, OWN = 16, 2  # blocks: of the system prompt, and of what a request has of its own
ANSWER_TOKENS = 100


def shared_prompt(load: float, requests: int) -> Trace:
    """They come at random, so many that the engines are this busy with what each has of its own."""
    chance, moment_s, made = random.Random(5), 0.0, []
    own_s = EngineModel().prefill_work_s(OWN * BLOCK_TOKENS, SYSTEM * BLOCK_TOKENS)
    for number in range(requests):
        moment_s += chance.expovariate(load * ENGINES / own_s)
        path = (*range(SYSTEM), *range(SYSTEM + number * OWN, SYSTEM + (number + 1) * OWN))
        answer = max(1, round(chance.expovariate(1 / ANSWER_TOKENS)))
        made.append(Request(Prompt(number, len(path) * BLOCK_TOKENS, path, number), answer, moment_s))
    return Trace("shared", tuple(made))


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("load", "requests"), [(0.3, 3000), (0.5, 10_000), (0.8, 3000)])
def test_a_shared_system_prompt_does_not_gather_requests_on_one_engine(load: float, requests: int) -> None:
    outcome = simulate(shared_prompt(load, requests), ENGINES, POLICIES["cost"], EngineModel())
    sent = Counter(job.engine for job in outcome.jobs)
    assert sum(sent.values()) == requests
    assert max(sent.values()) <= 1.2 * requests / ENGINES
    cached = sum(job.cached_tokens for job in outcome.jobs) / (requests * SYSTEM * BLOCK_TOKENS)
    assert cached > 0.99, "each engine has computed it once or twice"
