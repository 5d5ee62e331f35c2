"""How close the gateway is to its limits, as a scrape reads it."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import Metric

from gateway.observe.series import gauge


class Overload:
    """The queue of each model, how full it is of all (1: full), the pressure (1: a limit is met) and the loop's largest lateness
    of the last seconds."""

    def __init__(
        self,
        models: Iterable[str],
        depth: Callable[[str], int],
        fill: Callable[[], float],
        pressure: Callable[[], float],
        late_s: Callable[[], float],
    ) -> None:
        self._models = tuple(models)
        self._depth = depth
        self._fill = fill
        self._pressure = pressure
        self._late_s = late_s

    def __call__(self) -> Iterator[Metric]:
        """The gauges."""
        depths = [((model,), float(self._depth(model))) for model in self._models]
        yield gauge("interlock_queue_depth", "Requests that wait for an engine now.", ("model",), depths)
        yield gauge("interlock_queue_fill", "How full the queue of all models is; 1: full.", (), [((), self._fill())])
        yield gauge("interlock_pressure", "How close the gateway is to its limits; 1: one is met.", (), [((), self._pressure())])
        late = [((), self._late_s())]
        yield gauge("interlock_event_loop_lag_seconds", "How late the event loop was in the last 5 s, at the most.", (), late)
