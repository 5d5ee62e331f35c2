"""How close the gateway is to its limits."""

from collections.abc import Callable, Iterable, Mapping

from gateway.observe.group import Group
from gateway.observe.series import Gauge, Histogram

_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Overload(Group):
    """`depths` are the requests of a model that wait, by priority; `fill` how full the queue of all is (1: full); `pressure` how
    close to a limit the gateway is (1: one is met); `most_late_s` the loop's largest lateness of the last seconds."""

    def __init__(
        self,
        models: Iterable[str],
        depths: Callable[[str], Mapping[int, int]],
        fill: Callable[[], float],
        pressure: Callable[[], float],
        most_late_s: Callable[[], float],
    ) -> None:
        models = tuple(models)
        self._lag = Histogram(
            "interlock_event_loop_lag_seconds", "How late the event loop was at each of its ticks, 20 a second.", (), _LAG_S
        )
        families = (
            Gauge(
                "interlock_queue_depth",
                "Requests that wait for an engine now, by priority.",
                ("model", "priority"),
                lambda: [
                    ((model, str(priority)), count) for model in models for priority, count in sorted(depths(model).items())
                ],
            ),
            Gauge("interlock_queue_fill", "How full the queue of all models is; 1: full.", (), lambda: [((), fill())]),
            Gauge("interlock_pressure", "How close the gateway is to its limits; 1: one is met.", (), lambda: [((), pressure())]),
            self._lag,
            Gauge(
                "interlock_event_loop_lag_max_seconds",
                "How late the event loop was in the last 5 s, at the most.",
                (),
                lambda: [((), most_late_s())],
            ),
        )
        super().__init__("Overload", families)

    def ticked(self, late_s: float) -> None:
        """The loop's tick came this late."""
        self._lag.add((), late_s)
