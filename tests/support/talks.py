"""Conversations of several turns through a gateway, and what it believed of each request beside what the engine said."""

import asyncio
import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import httpx

from gateway.events import AttemptStarted, CacheTold, Event, FirstToken
from gateway.observe.bus import Bus, Observer

PATIENCE_S = 240.0  # of a client, on a machine that does much else
_WORDS = tuple(
    str.split(
        "river stone window garden letter music winter summer candle bridge market silver forest island kitchen paper doctor "
        "engine history orange planet rabbit school table valley water yellow zebra anchor basket cloud dragon evening flower"
    )
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation: where it went, of how many tokens its prompt was, how many of them were believed to be there
    and how many were, and its time to the first token."""

    talk: int
    engine: str
    prompt_tokens: int
    believed: int
    reported: int
    ttft_s: float

    @property
    def near(self) -> bool:
        """Whether the belief was within 5 % of the prompt."""
        return abs(self.believed - self.reported) <= 0.05 * self.prompt_tokens

    @property
    def strictly_near(self) -> bool:
        """Whether it was within 5 % of what was reported."""
        return abs(self.believed - self.reported) <= 0.05 * self.reported

    @property
    def hoped(self) -> bool:
        """Whether more was believed to be there than was, by more than 5 % of the prompt."""
        return self.believed - self.reported > 0.05 * self.prompt_tokens


class Watch:
    """An observer that keeps what was told of each request's last attempt."""

    def __init__(self) -> None:
        self.started: dict[str, AttemptStarted] = {}
        self._told: dict[str, CacheTold] = {}
        self._first_s: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case AttemptStarted():
                self.started[event.request_id] = event
            case CacheTold():
                self._told[event.request_id] = event
            case FirstToken():
                self._first_s[event.request_id] = event.ttft_s
            case _:
                pass

    def turn(self, talk: int, request_id: str) -> Turn:
        """What is known of a request that was answered."""
        told = self._told[request_id]
        forecast = told.forecast
        first_s = self._first_s[request_id]
        return Turn(talk, told.engine, forecast.prompt_tokens, forecast.cached_tokens, told.cached_tokens or 0, first_s)


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """Gateways that start inside are watched."""
    watch = Watch()

    def bus(observers: Sequence[Observer]) -> Bus:
        return Bus([*observers, watch])

    with mock.patch("gateway.app.Bus", bus):
        yield watch


@dataclass
class Talk:
    """A conversation, with the model's own answers in it. The same `seed` says the same; `says` are the fewest and the most words
    of a turn."""

    number: int
    system: str
    seed: int = 0
    says: tuple[int, int] = (6, 20)
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(f"{self.seed} {self.number}")
        self.messages.append({"role": "system", "content": self.system})

    async def turn(self, client: httpx.AsyncClient, watch: Watch) -> Turn:
        """Says something, and waits for the answer."""
        self.messages.append({"role": "user", "content": words(self._chance, self._chance.randint(*self.says))})
        answer = await client.post("/v1/chat/completions", json=self.body(self._chance.randint(3, 9)), timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        self.messages.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})
        return watch.turn(self.number, answer.headers["x-request-id"])

    def body(self, max_tokens: int, **more: Any) -> dict[str, Any]:
        """A request with all that was said."""
        return {"model": "m", "messages": self.messages, "max_tokens": max_tokens, "temperature": 0, **more}


def words(chance: random.Random, count: int) -> str:
    """So many words that mean nothing."""
    return " ".join(chance.choice(_WORDS) for _ in range(count))


def talks(count: int, *, seed: int, words_each: int = 24, says: tuple[int, int] = (6, 20)) -> list[Talk]:
    """Conversations of which every second has the same system prompt, and the others each its own."""
    chance = random.Random(seed)
    shared = words(chance, words_each)
    return [Talk(number, words(chance, words_each) if number % 2 else shared, seed, says) for number in range(count)]


async def rounds(
    all_talks: Sequence[Talk], turns: int, client: httpx.AsyncClient, watch: Watch, *, at_a_time: int = 3
) -> list[Turn]:
    """So many turns of each, a few conversations at a time, in an order that changes from round to round. In the order of their
    ends."""
    made: list[Turn] = []
    chance, room = random.Random(len(all_talks)), asyncio.Semaphore(at_a_time)

    async def say(talk: Talk) -> None:
        async with room:
            made.append(await talk.turn(client, watch))

    for _ in range(turns):
        order = list(all_talks)
        chance.shuffle(order)
        async with asyncio.TaskGroup() as group:
            for talk in order:
                group.create_task(say(talk))
    return made


def table(turns: Sequence[Turn]) -> str:
    """A line for each."""
    return "\n".join(
        f"talk {turn.talk:2} on {turn.engine}: prompt {turn.prompt_tokens:4}, believed {turn.believed:4}, "
        f"reported {turn.reported:4}"
        f"{'' if turn.near else '  MISSED'}{'' if turn.strictly_near else '  strictly'}"
        for turn in turns
    )
