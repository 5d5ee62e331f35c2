"""What the fakes of engines that take token ids have in common: a model that says given ids, and how an engine ends an answer.

A fake answers as its engine does: it refuses what its engine refuses, ends where its engine ends, and writes events of its
engine's shape. What the model would say is `says`; the end of turn follows by itself.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

from support.scripted_engine import CLOSE, HANG, HEAD, KEEP, RESET, ScriptedEngine, Seen, Step, chunked, event
from support.vocabulary import CONTROL, DEFINED

END = 2  # <|im_end|>
FILLER = len(CONTROL) + len(DEFINED) + ord("x")
CACHED = 4
DONE: tuple[Step, ...] = (chunked(b"data: [DONE]\n\n"), b"0\r\n\r\n", CLOSE)


def ids_of(text: str) -> list[int]:
    """One token a byte, whatever the text spells."""
    return [len(CONTROL) + len(DEFINED) + byte for byte in text.encode()]


@dataclass(frozen=True)
class Asked:
    """What a request asks, in one language for all engines. `top` are the alternatives of each log probability, None for none;
    `never` the tokens that are biased away."""

    prompt: list[int]
    limit: int
    stop_ids: frozenset[int] = frozenset()
    least: int = 0
    never: frozenset[int] = frozenset()
    ignore_end: bool = False
    top: int | None = None
    grammar: str | None = None
    visible: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Load:
    """Requests that an engine works on, those that it holds, how full its cache is, and of what that is made."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    block_tokens: int = 16
    blocks: int = 1000


class ConformingEngine(ScriptedEngine):
    """The base. Subclasses say what is `refused`, what is `asked`, and how `events` are written.

    `cut_after` so many events the connection breaks, `hang_after` so many nothing comes any more. `failure` is a status and words
    with which it answers instead. `load` is what it says of its load, where it `measures`.
    """

    path = "/v1/completions"
    hides_end = False  # whether the id that ended the turn is left out

    def __init__(self) -> None:
        super().__init__()
        self.says: Callable[[list[int]], Sequence[int]] = lambda _prompt: ids_of("Hello")
        self.size = 1  # tokens an event
        self.cut_after: int | None = None
        self.hang_after: int | None = None
        self.failure: tuple[int, str] | None = None
        self.load = Load()
        self.measures = True
        self.script = self._script

    @property
    def asks(self) -> list[Asked]:
        """What it was asked, oldest first."""
        return [self.asked(seen.body) for seen in self.calls]

    def refused(self, body: Any) -> Sequence[Step] | None:
        """The answer to a body that the engine does not take."""

    def failing(self, status: int, words: str) -> Sequence[Step]:
        """The engine's own way to fail so."""
        return plain(status, {"error": {"message": words, "type": "error", "code": status}})

    def asked(self, body: Any) -> Asked:
        """What a body asks."""
        raise NotImplementedError

    def events(self, asked: Asked, parts: Sequence[list[int]], finish: str) -> list[object]:
        """One event a part, the last with the end, and what follows it."""
        raise NotImplementedError

    def reports(self) -> Mapping[str, object]:
        """What it answers to a GET of each path, of its load and its cache: a text or a JSON value."""
        return {}

    def _told(self, seen: Seen) -> object:
        found = self.reports().get(seen.path)
        return super()._told(seen) if found is None or seen.path in self.answers else exposed(found)

    def end(self) -> Sequence[Step]:
        """What ends a stream."""
        return DONE

    def _script(self, seen: Seen) -> Sequence[Step]:
        if seen.path != self.path:
            return plain(404, {"detail": "Not Found"})
        if self.failure is not None:
            return list(self.failing(*self.failure))
        if (answer := self.refused(seen.body)) is not None:
            return list(answer)
        asked = self.asked(seen.body)
        ids, finish = self._generated(asked)
        parts = [ids[at : at + self.size] for at in range(0, len(ids), self.size)] or [[]]
        made: list[Step] = [event(each) for each in self.events(asked, parts, finish)]
        if self.cut_after is not None:
            return [HEAD, *made[: self.cut_after], RESET]
        if self.hang_after is not None:
            return [HEAD, *made[: self.hang_after], HANG]
        return [HEAD, *made, *self.end()]

    def _generated(self, asked: Asked) -> tuple[list[int], str]:
        """The ids, the one that ended the turn last, and why they ended."""
        ends = asked.stop_ids if asked.ignore_end else asked.stop_ids | {END}
        ids: list[int] = []
        for token in chain(self.says(asked.prompt), repeat(END)):
            if len(ids) == asked.limit:
                break
            barred = token in asked.never or (token in ends and len(ids) < asked.least)
            ids.append(FILLER if barred else token)
            if ids[-1] in ends:
                return ids, "stop"
        return ids, "length"


def plain(status: int, body: object) -> list[Step]:
    """An answer that is no stream."""
    data = json.dumps(body).encode()
    head = b"HTTP/1.1 %d No\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(data))
    return [head + data, CLOSE]


def exposed(found: object) -> object:
    """A text as an answer of its own, beside JSON."""
    if not isinstance(found, str):
        return found
    data = found.encode()
    return [b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(data) + data, KEEP]


def gauges(values: Mapping[str, float], labels: str = "") -> str:
    """A scrape of these, among others."""
    lines = [f"# HELP {name} A figure.\n# TYPE {name} gauge\n{name}{labels} {value}\n" for name, value in values.items()]
    return "".join(["# TYPE process_open_fds gauge\nprocess_open_fds 9.0\n", *lines])


def usage(asked: Asked, made: int) -> dict[str, object]:
    """As OpenAI Completions have it."""
    prompt = len(asked.prompt)
    details = {"cached_tokens": CACHED}
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made, "prompt_tokens_details": details}
