"""What runs on engines: by the gateway's own count, and by what they say of themselves."""

from collections.abc import Callable, Iterator

from engines.base import EngineLoad
from gateway.fleet.registry import Registry
from gateway.fleet.standing import LOAD_COUNTS_S
from gateway.observe.group import Group, Known, Pair
from gateway.observe.series import PAIR, Gauge, Labels


class Load(Group):
    """Of what an engine does not say, or last said too long ago, there is no series: that is not 0."""

    def __init__(self, known: Known, registry: Registry) -> None:
        def inflight() -> Iterator[tuple[Labels, float]]:
            running: dict[Pair, float] = dict.fromkeys(known.pairs, 0)
            for place, count in registry.running.counts.copy().items():
                pair = known.pair(*place)
                running[pair] = running.get(pair, 0) + count
            yield from running.items()

        def said(value: Callable[[EngineLoad], float | None]) -> Callable[[], Iterator[tuple[Labels, float]]]:
            def read() -> Iterator[tuple[Labels, float]]:
                now_s = registry.now_s()
                for each in registry.members.values():
                    load = registry.standing(each.id).load(now_s)
                    if load is not None and load[0] <= LOAD_COUNTS_S and (known := value(load[1])) is not None:
                        yield (each.model, each.id), known

            return read

        families = (
            Gauge("interlock_inflight_requests", "Attempts that run on the engine now, by the gateway's count.", PAIR, inflight),
            Gauge(
                "interlock_engine_requests_running",
                "Requests that the engine works on, as it says.",
                PAIR,
                said(lambda load: load.running),
            ),
            Gauge(
                "interlock_engine_requests_waiting",
                "Requests that the engine holds beside them, as it says.",
                PAIR,
                said(lambda load: load.waiting),
            ),
            Gauge(
                "interlock_engine_kv_cache_usage_ratio",
                "How full the engine's cache is, as it says; 1: full.",
                PAIR,
                said(lambda load: load.kv_usage),
            ),
        )
        super().__init__("Load", families)
