"""What a scrape says of engines' health."""

import json
from pathlib import Path

import pytest
from support.gateway import sample, serving, settings_for, tiny_model
from support.metrics import shown
from support.scripted_engine import ScriptedEngine
from support.wiring import fleet

from gateway.errors import EngineRefused
from gateway.fleet.registry import Registry
from gateway.fleet.standing import StandingRules
from gateway.observe.group import Known, Served
from gateway.observe.health import Health
from gateway.settings import Settings


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


def naming(file: Path, *urls: str, kind: str = "llamacpp") -> None:
    """Engines e0, e1, … of a file."""
    file.write_text(json.dumps([{"id": f"e{at}", "url": url, "kind": kind} for at, url in enumerate(urls)]))


def named_by(file: Path) -> Settings:
    """One model whose engines are those of the file."""
    model = {"name": "m", "source": str(tiny_model()), "engines_file": str(file)}
    server = {"port": 0, "admin_port": 0, "drain_s": 1}
    return Settings.model_validate({"server": server, "limits": {"render_workers": 0}, "models": [model]})


@pytest.mark.parametrize("others", [0, 1])
async def test_a_model_that_lost_its_engines_is_told_of(tmp_path: Path, others: int) -> None:
    """By the file that names them: then nothing is left that an engine's series could be of."""
    file, ready = tmp_path / "engines.json", sample("interlock_model_engines_ready", model="m")
    async with ScriptedEngine().running() as engine, ScriptedEngine().running() as other:
        naming(file, engine.url, *[other.url] * others)
        async with serving(named_by(file)) as served:
            await served.settled(ready, 1 + others, within_s=10)
            naming(file)
            await served.settled(ready, 0, within_s=10)
            assert (await served.chat()).json()["error"]["code"] == "no_engine"
            metrics = await served.metrics()
            assert not [name for name in metrics if name.startswith("interlock_engine_up")]
            failed = sample("interlock_request_failures_total", model="m", outcome="rejected", reason="no_engine")
            assert metrics[failed] == 1


async def test_an_engine_that_becomes_one_of_another_kind_is_of_that_kind_alone(tmp_path: Path) -> None:
    file, ready = tmp_path / "engines.json", sample("interlock_model_engines_ready", model="m")
    async with ScriptedEngine().running() as engine:
        naming(file, engine.url)
        async with serving(named_by(file)) as served:
            await served.settled(ready, 1, within_s=10)
            (before,) = [name for name in await served.metrics() if name.startswith("interlock_engine_info")]
            assert "llamacpp" in before
            naming(file, engine.url, kind="vllm")
            await served.settled(before, None, within_s=10)
            after = [name for name in await served.metrics() if name.startswith("interlock_engine_info")]
            assert all("vllm" in name for name in after)
            assert len(after) <= 1
