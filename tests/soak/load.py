"""The clients of a soak: requests at an even rate, some with a fault of one engine, some from clients that misbehave.

Invariant: which engine may be asked to fail changes every `TURN_S`, and nobody is for the last `CALM_S` of it, so that the others
are healthy. No more than `MOST_AT_ONCE` requests run at a time.
"""

import asyncio
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from faults.chaos import FAULTS, NONE
from faults.client import Answer, Manner, chat, misbehave
from faults.saying import text_of, unbroken
from soak.verdict import Counts
from support.vocabulary import small_tokenizer

MOST_AT_ONCE = 200
TURN_S = 20.0
CALM_S = 4.0
TEXTS = 500
FAULTY_TEXTS = 4  # of each fault
LEAVE = 0.1  # the share of clients that do not just read
INELIGIBLE = 0.03  # the share of requests that no engine but the first can go on with
_MANNERS: tuple[Manner, ...] = ("before", "waiting", "during", "after", "slow", "half_close", "garbage")
_READ: tuple[Manner, ...] = ("reads", "slow", "after")
_REFUSALS = {"400": 400, "404": 404, "422": 422, "context_length": 400}  # what the client would have done wrong
_ALTERS = ("fat", "bad_utf8", "surrogates")  # the engine itself says something else, which is passed on
_MODES = tuple(mode for mode in FAULTS if mode != NONE)
_GIVEN = {"giant_chunk": "mb=6", "endless_line": "mb=8", "comment_flood": "mb=100 s=0.01", "header_bomb": "kb=256"}


@dataclass(frozen=True, slots=True)
class Wish:
    """One request. `only` is the engine that shall fail on it."""

    text: str
    mode: str
    only: str | None
    manner: Manner
    fields: dict[str, Any]

    @property
    def eligible(self) -> bool:
        """Whether it can be gone on with on another engine, by what it asks for."""
        return "presence_penalty" not in self.fields and "n" not in self.fields


@dataclass(slots=True)
class Load:
    """What is offered, and what came of it. `share` of the requests asks for a fault; times are seconds since the load began.

    Texts come again: the gateway keeps what it has tokenised, within a bound that unlike prompts would take hours to reach.
    """

    url: str
    engines: tuple[str, ...]
    share: float
    chance: random.Random
    counts: Counts = field(default_factory=Counts)
    failures: Counter[str] = field(default_factory=Counter)
    examples: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    running: int = 0

    def wish(self, at_s: float, *, calm: bool = False) -> Wish:
        """The next request."""
        chance = self.chance
        number, fault, mode, only = chance.randrange(TEXTS), "", NONE, None
        if not calm and at_s % TURN_S < TURN_S - CALM_S and chance.random() < self.share:
            mode, only = chance.choice(_MODES), self.engines[int(at_s / TURN_S) % len(self.engines)]
            number %= FAULTY_TEXTS
            given = _GIVEN.get(mode) or f"s=0.5 after={5 * number} retry_after=1"
            fault = f"[[chaos:{mode} {given} only={only}]]"
        text = f"#{number}# [[tokens={8 + number % 25}]]{fault}"
        manner = chance.choice(_MANNERS) if not calm and chance.random() < LEAVE else "reads"
        fields: dict[str, Any] = {"stream": chance.random() < 0.8}
        if chance.random() < INELIGIBLE:
            fields |= chance.choice(({"presence_penalty": 0.5}, {"n": 2}))
        return Wish(text, mode, only, manner, fields)

    async def one(self, wish: Wish) -> None:
        """Sends one request and counts what becomes of it."""
        self.running += 1
        answer, fault = Answer(), "no answer within the client's time"
        body = chat(wish.text, **wish.fields)
        try:
            answer = await misbehave(self.url, wish.manner, body, chance=self.chance)
            fault = fault_of(wish, answer)
        except TimeoutError:
            pass
        except (AssertionError, OSError, EOFError, ValueError, KeyError) as error:
            fault = f"{type(error).__name__}: {str(error)[:200]}"
        finally:
            self.running -= 1
        self._count(wish, answer, fault)

    def _count(self, wish: Wish, answer: Answer, fault: str) -> None:
        counts = self.counts
        counts.sent += wish.manner != "garbage"
        if wish.manner not in _READ:
            counts.left += 1
        elif fault and not wish.eligible and _broke_off(answer):
            counts.apart += 1
        else:
            counts.judged += 1
            counts.good += not fault
        if fault and wish.manner in _READ:
            self.failures[f"{wish.mode}: {fault[:60]}"] += 1
            self.examples.append(f"{wish}: {fault}: {bytes(answer.raw[-300:])!r}")

    async def closed(self, clients: int, for_s: float) -> float:
        """Requests a second where each of so many clients asks again at once. They meet no fault."""
        loop = asyncio.get_running_loop()
        began_s, before = loop.time(), self.counts.judged

        async def client() -> None:
            while loop.time() < began_s + for_s:
                await self.one(self.wish(0.0, calm=True))

        await asyncio.gather(*(client() for _ in range(clients)))
        return (self.counts.judged - before) / (loop.time() - began_s)

    async def open(self, rate: float, for_s: float) -> None:
        """So many requests a second, evenly, whatever becomes of them; back when all are over."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.TaskGroup() as group:
            for number in range(int(rate * for_s)):
                await asyncio.sleep(max(0.0, began_s + number / rate - loop.time()))
                if self.running >= MOST_AT_ONCE:
                    self.counts.not_offered += 1
                else:
                    group.create_task(self.one(self.wish(loop.time() - began_s)))


def fault_of(wish: Wish, answer: Answer) -> str:
    """What is wrong with an answer; nothing of one that its client did not read on."""
    if wish.manner not in _READ:
        return ""
    answer.check()
    error = answer.error
    if error is not None:
        as_told = answer.status == _REFUSALS.get(wish.mode) and not answer.streamed
        return "" if as_told else f"{answer.status} {error['code']}: {error['message']}"
    if wish.mode in _ALTERS or "n" in wish.fields:
        return ""
    return "" if answer.text == said_to(wish.text) else "not what the unbroken engine says"


@cache
def said_to(text: str) -> str:
    """What an engine says to one turn of the user, as the gateway renders it."""
    prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return text_of(unbroken(small_tokenizer().encode(prompt)))


def _broke_off(answer: Answer) -> bool:
    """Whether a client was given a part of an answer that then failed."""
    return answer.streamed and not answer.done and any(_content(event) for event in answer.events if isinstance(event, dict))


def _content(event: dict[str, Any]) -> bool:
    return any(choice["delta"].get("content") for choice in event.get("choices", ()))
