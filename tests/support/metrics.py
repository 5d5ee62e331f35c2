"""Metrics without a gateway."""

import time
from collections.abc import Callable, Sequence

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gateway.observe.group import Group, Known, Served
from gateway.observe.metrics import Metrics

Key = tuple[str, frozenset[tuple[str, str]]]


def metrics_of(
    served: Sequence[Served], *more: Callable[[Known], Group], clock_s: Callable[[], float] = time.monotonic
) -> Metrics:
    """Those of the events of these models, in one dialect, with other groups."""
    known = Known(served, ["openai_chat"])
    return Metrics(known, [make(known) for make in more], clock_s=clock_s)


def shown(group: Group) -> list[Metric]:
    """What a scrape reads of a group alone."""
    return [family.copied()() for family in group.families]


def read(metrics: Metrics) -> dict[Key, float]:
    """Every sample of a scrape."""
    families = parse_text(metrics.copied()("")[1].decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """One sample; None where there is none."""
    return read(metrics).get((name, frozenset(labels.items())))
