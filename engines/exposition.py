"""What a Prometheus scrape of an engine says, of the few metrics that are asked for.

Only the lines of those are read: Prometheus' own library makes objects of every series first, and an engine has thousands of
them, which would hold the event loop up. Invariant: any bytes give a figure or None, in linear time. None is "says nothing",
never 0: so is a figure that cannot be, and a sum of which a part is one.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from engines.base import MAX_COUNT, MAX_LOAD_BYTES, EngineLoad

_MAX_SAMPLES = 512
_STARTED = "process_start_time_seconds"  # of Prometheus' library for Python, where a server is one process
_LINE = rb"^(%s)([{ \t][^\n]{0,2048})([^\n]?)"
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a scrape. `value` may be any float, NaN too."""

    name: str
    labels: Mapping[str, str]
    value: float


class Scrape:
    """Reads the samples of the metrics of these names."""

    def __init__(self, *names: str) -> None:
        self._line = re.compile(_LINE % "|".join(map(re.escape, names)).encode(), re.MULTILINE)

    def samples(self, body: bytes) -> tuple[Sample, ...]:
        """Those of the metrics, in their order; none of a scrape that is too large, or that is none."""
        if len(body) > MAX_LOAD_BYTES:
            return ()
        lines = list(islice(self._line.finditer(body), _MAX_SAMPLES + 1))
        if len(lines) > _MAX_SAMPLES:
            return ()
        return tuple([_sample(line[1].decode(), "" if line[3] else line[2].decode(errors="replace")) for line in lines])


class LoadScrape:
    """Reads the load of an engine that has these metrics.

    `rank` is the label with the data-parallel rank. Series of one rank are of different requests, but where each of them has all
    (`copies`). Of several caches the fullest counts. `prompt_tokens` counts those of all prompts, and of all ranks together, as
    only whether it falls is of interest.
    """

    def __init__(
        self,
        *,
        running: str,
        waiting: str,
        prompt_tokens: str,
        kv_usage: str | None = None,
        rank: str | None = None,
        copies: bool = False,
    ) -> None:
        self._running = running
        self._waiting = waiting
        self._prompt_tokens = prompt_tokens
        self._kv_usage = kv_usage
        self._rank = rank
        self._copies = copies
        self._scrape = Scrape(*(name for name in (running, waiting, prompt_tokens, _STARTED, kv_usage) if name is not None))

    def load(self, body: bytes, rank: int | None) -> EngineLoad:
        """The load of this rank, or of all."""
        told = self._scrape.samples(body)
        samples = of_rank(told, self._rank, rank)
        return EngineLoad(
            running=self._requests([each for each in samples if each.name == self._running]),
            waiting=self._requests([each for each in samples if each.name == self._waiting]),
            kv_usage=fullest(each.value for each in samples if each.name == self._kv_usage),
            prompt_tokens=added(each.value for each in told if each.name == self._prompt_tokens),
            started_s=next((each.value for each in told if each.name == _STARTED and 0 < each.value < MAX_COUNT), None),
        )

    def _requests(self, samples: Sequence[Sample]) -> int | None:
        if not self._copies:
            return added(each.value for each in samples)
        ranks: dict[str, list[float]] = {}
        for each in samples:
            ranks.setdefault(each.labels.get(self._rank or "", ""), []).append(each.value)
        return added(math.nan if added(values) is None else max(values) for values in ranks.values())


def of_rank(samples: Iterable[Sample], label: str | None, rank: int | None) -> Sequence[Sample]:
    """The samples of this rank; all where none is asked for."""
    return [each for each in samples if rank is None or (label is not None and each.labels.get(label) == str(rank))]


def count(value: float) -> int | None:
    """The number of something; None for what is no such number."""
    return int(value) if 0 <= value <= MAX_COUNT and value == int(value) else None


def added(values: Iterable[float]) -> int | None:
    """The sum of such numbers; None where there are none, or one is none."""
    total = None
    for value in values:
        if (number := count(value)) is None:
            return None
        total = (total or 0) + number
    return total


def fullest(values: Iterable[float]) -> float | None:
    """The largest of some shares; None where there are none, or one is none."""
    shares = list(values)
    return max(shares) if shares and all(0 <= share <= 1 for share in shares) else None


def number(text: str) -> float:
    """The number that a text is; NaN for one that is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _sample(name: str, rest: str) -> Sample:
    """From the labels on, which may be none. A time may follow the value. Of a line that is too long nothing is left."""
    labels, _, figures = rest.rpartition("}")
    return Sample(name, dict(_LABEL.findall(labels)), number(next(iter(figures.split()), "")))
