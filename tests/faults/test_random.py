"""10,000 requests, faults and clients drawn at random, on fleets of three engines of either kind, routed by load and by cost:
each has one outcome, and nothing is left.

The draws follow from a seed, which a failure prints; `FAULTS_SEED` repeats it. What happens when does not follow from it.

Left out: what keeps this test's one loop busy or floods it (`giant_chunk`, `endless_line`, `comment_flood`, `deep_json`,
`header_bomb`, `trickle`), which has tests of its own.
"""

import asyncio
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from faults.chaos import FAULTS, NONE
from faults.client import MANNERS, Answer, Manner
from faults.leaks import NoLeaks
from faults.place import QUICK, Fleet, fleet
from faults.saying import text_of, unbroken
from faults.speech import Kind

import gateway.app
from gateway.budget import RetryBudget
from gateway.routing.retry import RetryRules

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

KINDS: tuple[Kind, ...] = ("llamacpp", "vllm")
ROUTINGS = ({"policy": "least_outstanding"}, {"policy": "cost", "chunk_tokens": 32, "hold_s": 0.01})
REQUESTS = 2_500  # of each kind and routing
AT_ONCE = 50
ENGINES = "abc"
LEFT_OUT = ("giant_chunk", "endless_line", "comment_flood", "deep_json", "header_bomb", "trickle")
MODES = tuple(mode for mode in FAULTS if mode not in (*LEFT_OUT, NONE))
ALONE = (
    "die",
    "crash",
    "hang_before_headers",
    "hang_before_first",
    "hang_mid_stream",
)  # of one engine: the room to retry is small
ALTERS = ("fat", "bad_utf8", "surrogates")  # the engine itself says something else, which is passed on
READ: tuple[Manner, ...] = ("reads", "slow", "after")
PARTLY_READ: tuple[Manner, ...] = ("during", "half_close")
_TAG = re.compile(r"#(\d+)#")


@dataclass(frozen=True, slots=True)
class Drawn:
    """One request, as it was drawn."""

    number: int
    mode: str
    manner: Manner
    stream: bool
    text: str


def drawn(seed: int, number: int) -> Drawn:
    """A quarter of the requests ask for a fault, which most often only one engine has."""
    chance = random.Random(f"{seed} {number}")
    mode = chance.choice(MODES) if chance.random() < 0.25 else NONE
    only = f" only={chance.choice(ENGINES)}" if mode in ALONE or chance.random() < 0.7 else ""
    rest_s = 1 if only and chance.random() < 0.2 else 0
    given = f"s=0.05 after={chance.randrange(14)} retry_after={rest_s}{only}"
    text = f"#{number}# [[tokens={chance.randrange(1, 14)}]][[chaos:{mode} {given}]]"
    manner = chance.choice(MANNERS) if chance.random() < 0.6 else "reads"
    return Drawn(number, mode, manner, chance.random() < 0.7, text)


class Watched(RetryBudget):
    """The gateway's own budget, which the test can look at."""

    found: "Watched | None" = None

    def __new__(cls, *_: object) -> "Watched":
        cls.found = super().__new__(cls)
        return cls.found


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Watched]]:
    monkeypatch.setattr(gateway.app, "RetryBudget", Watched)
    yield Watched
    Watched.found = None


@pytest.mark.parametrize("routing", ROUTINGS, ids=lambda each: each["policy"])
@pytest.mark.parametrize("kind", KINDS)
async def test_each_of_many_requests_has_one_outcome_and_nothing_is_left(
    no_leaks: NoLeaks, kind: Kind, routing: dict[str, object], budget: type[Watched]
) -> None:
    seed = int(os.environ.get("FAULTS_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"FAULTS_SEED={seed}")
    answers: dict[int, Answer] = {}
    rules = {"eject_s": 0.2, "slow_start_s": 1}
    limits = {"queue_wait_s": 1}
    async with fleet(no_leaks, kind, len(ENGINES), timeouts=QUICK, failures=rules, limits=limits, routing=routing) as place:
        numbers = iter(range(REQUESTS))

        async def client() -> None:
            for number in numbers:
                each = drawn(seed, number)
                chance = random.Random(f"{seed} {number} manner")
                answers[number] = await place.misbehave(each.manner, each.text, chance, stream=each.stream)

        async with asyncio.TaskGroup() as clients:
            for _ in range(AT_ONCE):
                clients.create_task(client())
        said = said_to(place)
        for number, answer in answers.items():
            judge(drawn(seed, number), answer, said.get(number))
        tell(seed, answers)
        assert routing["policy"] != "cost" or any(record["queue_s"] for record in no_leaks.records), "nobody was held"
        assert "Traceback" not in no_leaks.log.getvalue()
        await serves_as_before(place, budget)


def said_to(place: Fleet) -> dict[int, str]:
    """The unbroken answer to each request that reached an engine. The shortest prompt is that of the first attempt."""
    prompts: dict[int, list[int]] = {}
    for seen in place.seen:
        found = _TAG.search(text_of(seen.prompt))
        if found is None:  # the last requests of the test
            continue
        known = prompts.setdefault(int(found[1]), seen.prompt)
        if len(seen.prompt) < len(known):
            prompts[int(found[1])] = seen.prompt
    return {number: text_of(unbroken(prompt)) for number, prompt in prompts.items()}


def judge(each: Drawn, answer: Answer, said: str | None) -> None:
    """What was read to its end is whole and equal to the unbroken answer, or an error; what was not is its beginning."""
    what = f"{each}: {bytes(answer.raw[-800:])!r}"
    if each.manner in READ:
        answer.check()
        if answer.done and each.mode not in ALTERS:
            assert answer.text == said, what
            assert answer.finishes == ["stop"] * answer.streamed, what
    elif each.manner in PARTLY_READ and each.mode not in ALTERS and answer.streamed:
        assert (said or "").startswith(answer.text), what


def tell(seed: int, answers: dict[int, Answer]) -> None:
    """What became of those that were read; the test would show nothing where hardly any were answered."""
    ends: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for number, answer in answers.items():
        each = drawn(seed, number)
        if each.manner in READ:
            fault = "no fault" if each.mode == NONE else "one engine's fault" if "only=" in each.text else "every engine's fault"
            ends[f"{fault}: {'whole' if answer.error is None else 'error'}"] += 1
            if answer.error is not None:
                errors[f"{fault}: {answer.error['code']}"] += 1
    print(dict(sorted(ends.items())), dict(sorted(errors.items())))
    assert ends["no fault: whole"] > 5 * ends["no fault: error"]
    assert ends["one engine's fault: whole"] > 2 * ends["one engine's fault: error"]
    assert ends["every engine's fault: error"] > REQUESTS // 100


async def serves_as_before(place: Fleet, budget: type[Watched]) -> None:
    """No breaker waits for a trial that is over, no retry holds room, and each engine serves again."""
    assert budget.found is not None
    assert budget.found.running == 0
    room = RetryRules().room(0)
    permits = [await budget.found.permit(0.0) for _ in range(room)]
    assert None not in permits, "retries wait for room that nobody has"
    for permit in permits:
        if permit is not None:
            permit.give_back()
    for engine in place.engines.values():
        engine.forget()
    async with asyncio.timeout(30):
        while not all(engine.seen for engine in place.engines.values()):
            await place.ready(10)
            await asyncio.sleep(0.1)  # an ejected one may be tried by then
            tried = await asyncio.gather(*(place.misbehave("reads", "x", random.Random(), stream=True) for _ in range(6)))
            for answer in tried:
                answer.check()
                assert answer.done, answer.error
