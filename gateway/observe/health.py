"""Which engines can serve, and what their breakers are, as a scrape reads it."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import Metric

from gateway.observe.series import gauge
from gateway.routing.breaker import BreakerState

_PAIR = ("model", "engine")
_VALUES: Mapping[BreakerState, float] = {"closed": 0.0, "open": 1.0, "half_open": 2.0}


class Health:
    """`pairs` are the models with their engines; `up` says of an engine whether it can serve, as far as is known."""

    def __init__(
        self, pairs: Callable[[], Iterable[tuple[str, str]]], up: Callable[[str], bool], breaker: Callable[[str], BreakerState]
    ) -> None:
        self._pairs = pairs
        self._up = up
        self._breaker = breaker

    def __call__(self) -> Iterator[Metric]:
        """The gauges."""
        pairs = list(self._pairs())
        up = [(pair, float(self._up(pair[1]))) for pair in pairs]
        yield gauge("interlock_engine_up", "1: the engine can serve, by its probes and connections.", _PAIR, up)
        states = [(pair, _VALUES[self._breaker(pair[1])]) for pair in pairs]
        text = "What the engine's failures made of it. 0: requests go there, 1: none do, 2: one tries it."
        yield gauge("interlock_engine_breaker_state", text, _PAIR, states)
