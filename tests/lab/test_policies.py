"""Each policy's rule on a small scene, and that its books are even when all is over."""

import random
from collections import deque
from collections.abc import Sequence
from itertools import count

import pytest

from gateway.routing.choice import Tuning
from gateway.routing.queue import QueueRules
from gateway.routing.turns import AGEING
from gateway.settings_parts import LimitSettings
from gateway.wiring import queue_rules
from lab.simulate.model import EngineModel
from lab.simulate.named import POLICIES
from lab.simulate.peers import DynamoLike, LlmdLike, LmetricLike, LmetricPrecise, SglangLike, Shadow
from lab.simulate.policies import LeastOutstanding, Session, Usage
from lab.simulate.product import GatewayPolicy
from lab.simulate.run import simulate
from lab.traces import Prompt, Request, Trace

MODEL = EngineModel(blocks=100)
BLOCK = MODEL.block_tokens


class Scene:
    """Engines that say what the test sets."""

    def __init__(self, engines: int = 3) -> None:
        self.engines = engines
        self.held: list[frozenset[int]] = [frozenset()] * engines
        self.queues = [0] * engines
        self.usage = [0.0] * engines

    def cached_blocks(self, engine: int, path: Sequence[int]) -> int:
        return next((place for place, block in enumerate(path) if block not in self.held[engine]), len(path))

    def waiting(self, engine: int) -> int:
        return self.queues[engine]

    def kv_usage(self, engine: int) -> float:
        return self.usage[engine]


def prompt(number: int, blocks: int, *, start: int = 0, session: int = 0) -> Prompt:
    return Prompt(number, blocks * BLOCK, tuple(range(start, start + blocks)), session)


def rng() -> random.Random:
    return random.Random(1)


def end(policy: LeastOutstanding, ended: Prompt, engine: int) -> None:
    policy.first_token(ended, engine, 0.0)
    policy.finished(ended, engine, Usage(0, 1), 0.0)


def test_round_robin_and_least_outstanding() -> None:
    turns = POLICIES["round_robin"](Scene(), MODEL, rng())
    assert [turns.choose(prompt(each, 1), 0.0) for each in range(4)] == [0, 1, 2, 0]
    least = LeastOutstanding(Scene(), MODEL, rng())
    first = [least.choose(prompt(each, 1), 0.0) for each in range(3)]
    assert sorted(each for each in first if each is not None) == [0, 1, 2]
    end(least, prompt(1, 1), 1)
    assert least.choose(prompt(4, 1), 0.0) == 1


def test_a_session_stays_and_few_move_when_an_engine_comes() -> None:
    three, four = Session(Scene(3), MODEL, rng()), Session(Scene(4), MODEL, rng())
    before = [three.choose(prompt(0, 1, session=each), 0.0) for each in range(400)]
    after = [four.choose(prompt(0, 1, session=each), 0.0) for each in range(400)]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {3}
    assert 60 < len(moved) < 140


def test_sglang_goes_to_the_match_until_the_fleet_is_out_of_balance() -> None:
    policy = SglangLike(Scene(), MODEL, rng())
    holder = policy.choose(prompt(0, 10), 0.0)
    assert holder is not None
    for number in range(1, 65):
        assert policy.choose(prompt(number, 10), 0.0) == holder
    assert policy.running[holder] == 65
    assert policy.choose(prompt(99, 10), 0.0) != holder
    policy.running = [0, 0, 0]
    policy.running[holder] = 1
    short = Prompt(100, 10 * BLOCK, (0, 1, 2, *range(500, 507)), 0)
    assert policy.choose(short, 0.0) != holder, "0.3 of the prompt is not more than 0.3"


def test_llmd_weighs_prefix_queue_and_memory() -> None:
    scene = Scene(2)
    policy = LlmdLike(scene, MODEL, rng())
    holder = policy.choose(prompt(0, 10), 0.0)
    assert holder is not None
    scene.queues[holder] = 5
    assert policy.choose(prompt(1, 10), 0.0) == holder, "3 for the prefix against 2 for the queue"
    scene.usage[holder] = 0.6
    assert policy.choose(prompt(2, 10), 0.0) != holder, "3 against 2 and 1.2"


def test_dynamo_counts_blocks_to_prefill_and_in_use() -> None:
    scene = Scene(2)
    scene.held[0] = frozenset(range(10))
    policy = DynamoLike(scene, MODEL, rng())
    long, short = prompt(0, 10), prompt(1, 10, start=50)
    assert policy.choose(long, 0.0) == 0, "all of it is cached there"
    assert policy.choose(short, 0.0) == 1, "the other has 10 in use"
    assert policy.choose(prompt(2, 10), 0.0) == 0, "10 in use against 20 in use and to prefill"
    policy.first_token(short, 1, 0.0)
    assert policy.choose(prompt(3, 4, start=80), 0.0) == 1, "20 in use against 10, as its prefill is done"


def test_lmetric_multiplies_uncached_tokens_by_requests() -> None:
    policy = LmetricLike(Scene(2), MODEL, rng())
    holder = policy.choose(prompt(0, 10), 0.0)
    assert holder is not None
    policy.running = [0, 0]
    policy.running[holder] = 3
    assert policy.choose(prompt(1, 12), 0.0) == holder, "2 blocks times 4 against 12 times 1"
    policy.running[holder] = 7
    assert policy.choose(prompt(2, 14), 0.0) != holder, "2 blocks times 8 against 14 times 1"


def test_lmetric_with_pending_work_leaves_the_engine_that_has_it() -> None:
    scene = Scene(2)
    policy = LmetricPrecise(scene, MODEL, rng())
    first = policy.choose(prompt(0, 20), 0.0)
    assert first is not None
    scene.held[first] = frozenset(range(100, 110))
    assert policy.choose(prompt(1, 12, start=100), 0.0) != first
    policy.first_token(prompt(0, 20), first, 0.0)
    policy.first_token(prompt(1, 12, start=100), 1 - first, 0.0)
    assert policy.choose(prompt(2, 12, start=100), 0.0) == first


def test_a_shadow_forgets_the_end_of_the_oldest_first() -> None:
    shadow = Shadow(4)
    shadow.sent((1, 2, 3))
    shadow.sent((7, 8))
    assert (shadow.cached((1, 2, 3)), shadow.cached((7, 8))) == (2, 2)


@pytest.mark.parametrize("kind", [LeastOutstanding, SglangLike, LlmdLike, DynamoLike, LmetricLike, LmetricPrecise])
def test_the_books_are_even_at_the_end(kind: type[LeastOutstanding]) -> None:
    policy, chance = kind(Scene(), MODEL, rng()), random.Random(2)
    going = list[tuple[Prompt, int]]()
    for number in range(300):
        one = prompt(number, chance.randrange(1, 20), start=chance.randrange(3) * 100)
        engine = policy.choose(one, 0.0)
        assert engine is not None
        going.append((one, engine))
        if chance.random() < 0.5:
            end(policy, *going.pop(chance.randrange(len(going))))
    for one, engine in going:
        end(policy, one, engine)
    assert policy.running == [0, 0, 0]
    books = [value for name, value in vars(policy).items() if name in ("_prefill", "_active", "_pending")]
    assert all(book == [0, 0, 0] for book in books)
    assert not vars(policy).get("_charged")


def test_the_gateway_holds_what_has_no_room_and_sends_it_when_there_is() -> None:
    policy = GatewayPolicy(Tuning(), Scene(1), EngineModel(blocks=40), rng())
    big, late = prompt(0, 30), prompt(1, 30, start=100)
    assert policy.choose(big, 0.0) == 0
    assert policy.choose(late, 0.1) is None
    assert policy.released(0.2) == []
    policy.first_token(big, 0, 2.0)
    policy.finished(big, 0, Usage(0, 5), 3.0)
    assert policy.released(3.0) == [(late, 0)]
    assert policy.released(3.0) == ()


def test_what_the_gateway_holds_is_passed_until_its_wait_has_made_up_for_its_work_and_no_longer() -> None:
    policy = GatewayPolicy(Tuning(), Scene(1), EngineModel(blocks=40), rng())
    running, numbers, sent = deque[Prompt](), count(1), dict[int, float]()
    big = prompt(0, 30)

    def come(one: Prompt, now_s: float) -> None:
        if policy.choose(one, now_s) is not None:
            sent[one.id] = now_s
            running.append(one)
            policy.first_token(one, 0, now_s)

    for step in range(200):
        now_s = step / 2
        if running and step > 2:  # three run
            policy.finished(running.popleft(), 0, Usage(0, 5), now_s)
        for one, _ in policy.released(now_s):
            sent[one.id] = now_s
            running.append(one)
            policy.first_token(one, 0, now_s)
        come(prompt(number := next(numbers), 10, start=number * 100), now_s)
        if step == 10:
            come(big, now_s)
        if 0 in sent:
            break
    passed = [moment for number, moment in sent.items() if number and moment > 5.0]
    assert 5.0 < sent[0] <= 5.0 + 30 * BLOCK * 1e-4 / AGEING + 4 / 2, "and at most until three have ended"
    assert passed, "it was not passed at all"


def test_the_gateway_lets_go_what_has_waited_long_enough() -> None:
    """At that moment, whatever comes, or does not."""
    gone = list[tuple[int, float]]()

    class Watched(GatewayPolicy):
        def released(self, now_s: float) -> Sequence[tuple[Prompt, int]]:
            found = super().released(now_s)
            gone.extend((one.id, now_s) for one, _ in found)
            return found

    trace = Trace("two", (Request(prompt(0, 30), 3000, 0.0), Request(prompt(1, 30, start=100), 1, 0.1)))
    model = EngineModel(blocks=40)
    outcome = simulate(trace, 1, lambda truth, model, rng: Watched(Tuning(), truth, model, rng, QueueRules(wait_s=7.0)), model)
    assert gone == [(1, 7.1)]
    assert outcome.jobs[0].done_s > 50


def test_one_that_the_gateway_would_hold_goes_at_once_where_the_queue_is_full() -> None:
    policy = GatewayPolicy(Tuning(), Scene(1), EngineModel(blocks=40), rng(), QueueRules(requests=1))
    assert [policy.choose(prompt(each, 30, start=each * 100), 0.1 * each) for each in range(3)] == [0, None, 0]


def test_the_simulated_queue_is_as_the_settings_have_it() -> None:
    assert queue_rules(LimitSettings()) == QueueRules()


def test_the_gateway_is_told_what_engines_report(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[tuple[object, ...]]()
    policy = GatewayPolicy(Tuning(), Scene(2), MODEL, rng())
    monkeypatch.setattr(policy._router, "first_token", lambda *said: told.append(said))
    monkeypatch.setattr(policy._router, "finished", lambda *said: told.append(said))
    policy.first_token(prompt(7, 1), 0, 1.0)
    policy.finished(prompt(7, 1), 0, Usage(64, 9), 2.0)
    assert told == [("7", 1.0), ("7", 2.0, 9, 64)]
