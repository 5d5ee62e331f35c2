"""What is shown of a window, and first of all what is wrong. PURE.

`interlock top --json` prints a `View` as it stands here; docs/top.md describes it. None: not known.
"""

from dataclasses import dataclass

from gateway.top.rows import (
    EngineRow,
    FailureRow,
    ModelRow,
    ParseFailureRow,
    Totals,
    engines,
    failures,
    models,
    parse_failures,
    totals,
)
from gateway.top.troubles import Facts, Trouble, troubles
from gateway.top.window import Window

VERSION = 1
MOST_ROWS = 1000  # of each list


@dataclass(frozen=True, slots=True)
class View:
    """All of it. `window_s`: what rates, counts of late and quantiles are of; None before there was a second scrape.
    `restarted`: the gateway was started again in that time. Rows are in the order of their names, what is wrong of its weight;
    `left_out` counts engines that are beyond the most that are shown."""

    view: int
    window_s: float | None
    restarted: bool
    troubles: tuple[Trouble, ...]
    gateway: Totals
    models: tuple[ModelRow, ...]
    engines: tuple[EngineRow, ...]
    failures: tuple[FailureRow, ...]
    parse_failures: tuple[ParseFailureRow, ...]
    left_out: int


def view_of(window: Window) -> View:
    """What a window shows."""
    rows = tuple(engines(window))
    facts = Facts(
        window, totals(window), tuple(models(window, rows)), rows, tuple(failures(window)), tuple(parse_failures(window))
    )
    return View(
        view=VERSION,
        window_s=window.seconds,
        restarted=window.restarted,
        troubles=troubles(facts),
        gateway=facts.gateway,
        models=facts.models[:MOST_ROWS],
        engines=rows[:MOST_ROWS],
        failures=facts.failures[:MOST_ROWS],
        parse_failures=facts.parse_failures[:MOST_ROWS],
        left_out=max(0, len(rows) - MOST_ROWS),
    )
