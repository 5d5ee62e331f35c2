"""Which engines can serve, what their breakers are, how often they were restarted, and what models were checked for."""

from collections.abc import Callable, Iterator, Mapping

from gateway.fleet.registry import Registry
from gateway.fleet.standing import Standing
from gateway.observe.group import Group, Known
from gateway.observe.series import PAIR, Gauge, Labels, Total
from gateway.prompt.profile import CheckName
from gateway.routing.breaker import BreakerState

_BREAKERS: Mapping[BreakerState, float] = {"closed": 0.0, "open": 1.0, "half_open": 2.0}


class Health(Group):
    """As the registry knows it. `checks` says which of a model's tests passed, where they were run."""

    def __init__(self, known: Known, registry: Registry, checks: Mapping[str, Mapping[CheckName, bool]]) -> None:
        tests = [((model, test), float(passed)) for model, run in checks.items() for test, passed in run.items()]

        def of(value: Callable[[Standing], float], compared: bool = False) -> Callable[[], Iterator[tuple[Labels, float]]]:
            def read() -> Iterator[tuple[Labels, float]]:
                for each in registry.members.values():
                    if not compared or known.served[each.model].rendered:
                        yield (each.model, each.id), value(registry.standing(each.id))

            return read

        def ready() -> Iterator[tuple[Labels, float]]:
            counts = dict.fromkeys(known.served, 0.0)
            for each in registry.members.values():
                counts[each.model] += registry.standing(each.id).ready
            yield from (((model,), count) for model, count in counts.items())

        families = (
            Gauge(
                "interlock_model_engines_ready",
                "Engines of the model that can serve; 0 where none can, and where it has none.",
                ("model",),
                ready,
            ),
            Gauge("interlock_engine_up", "1: the engine can serve, by its probes and connections.", PAIR, of(lambda e: e.ready)),
            Gauge(
                "interlock_engine_breaker_state",
                "What the engine's failures made of it. 0: requests go there, 1: none do, 2: one tries it.",
                PAIR,
                of(lambda e: _BREAKERS[e.breaker.state(registry.now_s())]),
            ),
            Total(
                "interlock_engine_restarts_total",
                "Lives of the engine that were noticed to have ended: it may be another process since.",
                PAIR,
                of(lambda e: e.restarts),
            ),
            Gauge(
                "interlock_engine_tokenizer_mismatch",
                "1: out of service, its tokenizer is not the model's.",
                PAIR,
                of(lambda e: e.problem == "tokenizer_mismatch", compared=True),
            ),
            Gauge(
                "interlock_model_check", "1: the model passed this test of `interlock check`.", ("model", "test"), lambda: tests
            ),
        )
        super().__init__("Health", families)
