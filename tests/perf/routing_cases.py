"""The cases that routing is measured in: loads, goals, and the rows that were published of other policies for the same loads.

The rows are those of the lab's simulator. That they come out again, to the last digit shown, is what says that a case is the
same; `rate` and `limit` were found by that.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Row(NamedTuple):
    """Seconds to the first token, and the percentage of all prompt tokens that was cached."""

    mean: float
    p95: float
    hit: float


@dataclass(frozen=True, slots=True)
class Case:
    """A trace, `speed` times as fast, before so many engines of so many blocks of 512 tokens. `rate`: sessions that begin in a
    second, where the trace is of agents. `limit`: requests that are read, with all of their sessions; None: all. `goal`: of the
    mean over `seeds`, which draw when sessions begin, and over so many `draws` of what breaks the product's ties."""

    name: str
    trace: str
    engines: int
    blocks: int
    speed: float
    goal: Row
    limit: int | None = None
    rate: float = 0.05
    seeds: tuple[int, ...] = (1,)
    draws: int = 5

    @property
    def agents(self) -> bool:
        """Whether the next request of a session follows the answer to the one before."""
        return self.trace == "agentic"

    def told(self) -> str:
        """For the head of a table."""
        load = f"{self.limit or 'all'} requests" + (f", {self.rate} sessions a second" if self.agents else "")
        return f"{self.name}: {self.trace}, {load}, speed {self.speed:g}; {self.engines} engines of {self.blocks} blocks"


CASES = {
    case.name: case
    for case in (
        Case("A", "conversation", 8, 4000, 1.0, Row(1.18, 3.65, 30)),
        Case("B", "conversation", 8, 4000, 2.0, Row(1.85, 5.5, 30), limit=8000),
        Case("C", "conversation", 8, 1000, 1.0, Row(1.44, 4.4, 15.5), limit=8000),
        Case("D", "conversation", 16, 4000, 3.5, Row(1.20, 3.9, 32), limit=8000, draws=9),
        Case("E", "synthetic", 4, 4000, 1.0, Row(4.6, 18, 48), draws=9),
        Case("F", "agentic", 8, 1000, 1.0, Row(1.87, 11.6, 90), limit=6000, rate=0.08, seeds=(1, 2, 3), draws=3),
        Case("G", "agentic", 8, 4000, 4.0, Row(0.85, 2.95, 96), limit=8000, rate=0.1),
        Case("H", "agentic", 16, 2000, 2.0, Row(0.79, 2.5, 96), limit=10_000, rate=0.2),
    )
}

# Our names of the policies that need no part of ours, and those of the two simulations; "": it has none.
PEERS = {
    "round robin": ("rr", "round_robin"),
    "least outstanding": ("least", "least_outstanding"),
    "session table": ("sticky", ""),
    "SGLang-like": ("sglang", "sglang_like"),
    "llm-d-like": ("llmd", "llmd_like"),
    "Dynamo-like": ("dynamo", "dynamo_like"),
    "LMetric-like": ("lmetric", "lmetric_like"),
    "LMetric, precise": ("precise_lmetric", "lmetric_precise"),
    "SMetric-like": ("smetric", ""),
}

# A line a peer, in the order of PEERS: mean / p95 / hit rate of the cases A to H, each with the first of its seeds.
_ROWS = """
3.12/13.4/10.1 96.0/186/9.6 3.45/14.4/6.2 20.3/70.9/8.6 160/429/17.2 19.2/62.8/26.3 28.8/147/48.7 14.4/33.4/26.1
2.67/9.75/9.6 93.2/167/9.8 2.86/11.2/6.0 8.71/26.5/8.1 155/404/16.8 14.1/36.6/31.3 10.1/32.2/56.6 13.3/34.0/31.2
2.07/8.19/32.9 4.59/16.5/31.9 2.67/10.7/16.9 2.69/11.3/34.3 8.15/26.9/49.5 7.61/52.2/83.0 0.96/3.16/96.2 0.88/2.65/96.2
2.04/8.47/32.9 4.83/18.9/32.1 2.57/10.7/17.4 2.66/11.6/34.8 7.06/23.4/50.8 4.63/28.4/87.3 1.03/3.48/96.1 0.92/2.76/96.0
1.90/7.61/19.2 27.7/63.4/17.9 2.01/8.04/16.0 2.10/8.42/25.9 88.3/207/30.6 2.09/13.0/91.3 3.73/20.2/86.0 1.41/8.23/94.3
1.65/4.47/20.8 27.1/54.8/17.2 1.89/5.16/10.5 2.23/5.95/19.1 123/331/20.0 6.84/24.6/62.0 4.14/18.8/79.9 4.81/20.0/71.8
2.03/7.99/33.2 4.44/16.7/32.9 2.57/9.81/17.1 2.69/11.5/35.2 9.11/32.5/49.2 3.82/21.9/87.8 1.07/3.94/96.1 1.00/3.64/95.9
1.25/3.97/27.2 3.49/10.7/23.4 1.53/4.78/13.4 1.39/4.07/25.7 55.7/207/30.1 4.00/19.9/77.3 1.09/4.59/94.4 1.05/4.47/93.9
1.30/4.20/29.6 2.60/7.86/26.5 1.73/6.08/15.5 1.34/4.11/29.8 11.2/39.4/45.1 6.52/46.6/83.1 0.89/3.28/95.9 0.87/3.24/95.6
"""


def _row(text: str) -> Row:
    mean, p95, hit = (float(value) for value in text.split("/"))
    return Row(mean, p95, hit)


PUBLISHED = {
    (name, case): _row(text)
    for name, line in zip(PEERS, _ROWS.strip().splitlines(), strict=True)
    for case, text in zip(CASES, line.split(), strict=True)
}

# Of the short form: the product's mean over its ties, measured, in the lab's simulator. Another is a change of what it does.
SHORT = {"A": Row(1.31, 4.10, 28.5), "F": Row(0.75, 2.37, 96.0)}
SHORT_LIMIT = 4000
SHORT_MARGIN = 0.05
