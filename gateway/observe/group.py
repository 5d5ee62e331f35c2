"""What metrics are made of: groups of families that belong together, and what each needs to know.

A group that is a fold over the events is one module in `gateway.observe.groups`, found by itself: a new metric is a new file.
What is known elsewhere, as an engine's load, is a group that the wiring hands to the metrics.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gateway.events import NO_ENGINE, NO_MODEL, Event
from gateway.observe.series import Counter, Family, Labels, Names

NO_FORMAT = "none"
NO_DIALECT = "none"

LABELS: Mapping[str, str] = {
    "model": "a model of the settings, whatever alias the client used; `unknown` where it named none",
    "engine": "an engine's id; `none` where the request reached none",
    "dialect": "the API that the client spoke",
    "outcome": "how a request ended: `ok`, `client_error`, `rejected`, `upstream_error`, `timeout`, `client_gone`, `drained`",
    "reason": "why; the words are those of the log and, for errors, of the `code` that clients get",
    "stage": "what the time was spent on",
    "format": "how the model writes thoughts and calls (docs/formats.md); `none` where its engine parses them",
    "finish_reason": "why the model's answer ended: `stop`, `length`, `tool_calls`, `content_filter`",
    "kind": "of a parse failure (docs/formats.md), of an engine, or of an event of its cache",
    "result": "`right`, `over` or `under`",
    "priority": "of those that wait; all are `0` until there are keys",
    "version": "as the engine, or the gateway, says it",
    "python": "the version of Python",
    "test": "of `interlock check`",
    "origin": "what names engines: `settings`, `engines_file`, `dns`",
    "gpu": "a GPU of the engine, as the settings name it",
}
"""What each label says."""

Pair = tuple[str, str]
"""A model and its engine, as labels."""
Take = Callable[[Pair, Any], None]
"""What a group does with an event of one type, of this model and engine."""
Starts = Iterable[tuple[Counter, Sequence[Labels]]]
"""Series that counters begin with, at zero."""


@dataclass(frozen=True, slots=True)
class Served:
    """One model of the settings: its name, the ids of the engines that it has from the start, whose counts are shown from then
    on, the names of its formats (with tools it may be another), and whether its prompts are rendered here."""

    model: str
    engines: tuple[str, ...]
    formats: tuple[str, ...]
    rendered: bool = True


class Known:
    """What labels may say: the models of the settings, their formats and the dialects; the engines that serve, with their models
    (`pairs`), and those that left not long ago."""

    def __init__(self, served: Sequence[Served], dialects: Sequence[str]) -> None:
        self.served: Mapping[str, Served] = MappingProxyType({each.model: each for each in served})
        self.dialects = tuple(dialects)
        self.model = Names([NO_MODEL, *self.served])
        self.engine = Names([NO_ENGINE])
        self.format = Names([NO_FORMAT, *(name for each in served for name in each.formats)])
        self.dialect = Names([NO_DIALECT, *dialects])
        self.pairs: dict[Pair, None] = {}

    def pair(self, model: str, engine: str) -> Pair:
        """A model and its engine, as labels."""
        return self.model(model), self.engine(engine)


class Group:
    """Families that belong together. `title` heads them in docs/metrics.md; `takes` says what becomes of the events that they
    are made of: each costs one call. A subclass may have more to say on how its series begin and end."""

    def __init__(self, title: str, families: Sequence[Family], takes: Mapping[type[Event], Take] | None = None) -> None:
        self.title = title
        self.families = tuple(families)
        self.takes = takes or {}

    def starts_with(self, served: Served) -> Starts:
        """What counters of a model begin with."""
        return ()

    def starts(self, served: Served, engine: str) -> Starts:
        """What counters of an engine begin with, once it can be given requests. A histogram begins with what is first observed,
        as it is many series: an engine that was never asked has none."""
        return ()

    def forget(self, gone: Callable[[Labels], bool]) -> None:
        """Engines are shown no more. Their series are dropped without this."""
