"""What engines say of their load is shown while it is fresh, and what they do not say has no series."""

from support.gateway import sample
from support.metrics import shown
from support.wiring import fleet

from engines.base import EngineLoad
from gateway.fleet.registry import Registry
from gateway.fleet.standing import LOAD_COUNTS_S, StandingRules
from gateway.observe.group import Known, Served
from gateway.observe.health import Health
from gateway.observe.load import Load

KNOWN = Known([Served("m", ("a", "b"), ("hermes",))], [])
SAID = ("requests_running", "requests_waiting", "kv_cache_usage_ratio")
RUNNING, WAITING, USAGE = (sample(f"interlock_engine_{name}", model="m", engine="a") for name in SAID)
RESTARTS = sample("interlock_engine_restarts_total", model="m", engine="a")


def read(group: Load | Health) -> dict[str, float]:
    return {sample(each.name, **each.labels): each.value for family in shown(group) for each in family.samples}


def test_what_is_unknown_or_stale_has_no_series_and_zero_is_a_figure() -> None:
    now_s = 0.0
    registry = Registry(fleet("a", "b").members.values(), StandingRules(), lambda: now_s)
    load = Load(KNOWN, registry)
    assert not {RUNNING, WAITING, USAGE} & read(load).keys()
    registry.set_load("a", EngineLoad(3, 0, None))
    assert {name: value for name, value in read(load).items() if name in (RUNNING, WAITING, USAGE)} == {RUNNING: 3, WAITING: 0}
    registry.set_load("a", EngineLoad(None, None, 0.0))
    assert {name: value for name, value in read(load).items() if name in (RUNNING, WAITING, USAGE)} == {USAGE: 0}
    now_s = LOAD_COUNTS_S
    assert USAGE in read(load)
    now_s += 0.1
    assert USAGE not in read(load)
    assert not [name for name in read(load) if "'b'" in name and "engine_" in name.partition("[")[0]]


def test_restarts_are_counted_from_zero() -> None:
    registry = fleet("a", "b")
    health = Health(KNOWN, registry, {})
    assert read(health)[RESTARTS] == 0
    for ready in (True, False, True, False, True):
        registry.set_ready("a", ready)
    assert read(health)[RESTARTS] == 2
    assert read(health)[RESTARTS.replace("'a'", "'b'")] == 0
