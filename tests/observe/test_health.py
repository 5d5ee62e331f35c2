"""What a scrape says of engines' health."""

from support.gateway import sample, serving, settings_for
from support.metrics import shown
from support.scripted_engine import ScriptedEngine
from support.wiring import fleet

from gateway.errors import EngineRefused
from gateway.fleet.registry import Registry
from gateway.fleet.standing import StandingRules
from gateway.observe.group import Known, Served
from gateway.observe.health import Health


def read(health: Health) -> dict[str, float]:
    return {sample(each.name, **each.labels): each.value for family in shown(health) for each in family.samples}


def test_each_engine_is_up_or_not_and_its_breaker_is_one_of_three() -> None:
    now_s = 0.0
    registry = Registry(fleet("a", "b").members.values(), StandingRules(), lambda: now_s)
    health = Health(Known([Served("m", ("a", "b"), ("hermes",))], []), registry, {})
    up, state = (sample(f"interlock_engine_{name}", model="m", engine="a") for name in ("up", "breaker_state"))
    assert (read(health)[up], read(health)[state]) == (0, 0)
    registry.set_ready("a", True)
    assert read(health)[up] == 1
    for _ in range(5):
        registry.visit("a").failed(EngineRefused("x", status=500))
    assert (read(health)[up], read(health)[state]) == (1, 1)
    now_s = 10.0
    assert read(health)[state] == 2
    registry.visit("a").served()
    assert read(health)[state] == 0
    other = {name: value for name, value in read(health).items() if "'b'" in name}
    assert set(other.values()) == {0}, "nothing of one is told of the other"


async def test_a_gateway_tells_it() -> None:
    async with ScriptedEngine().running() as engine, serving(settings_for(engine.url)) as served:
        metrics = await served.metrics()
        assert metrics[sample("interlock_engine_up", model="m", engine="e")] == 1
        assert metrics[sample("interlock_engine_breaker_state", model="m", engine="e")] == 0
        engine.up = False
        await served.settled(sample("interlock_engine_up", model="m", engine="e"), 0, within_s=10)
