"""What a GPU exporter says is shown as its engines', while it says it, and changes nothing else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.dcgm import PATH, FakeGpu, answer, exporter_text, says
from support.gateway import sample, serving, settings_for
from support.metrics import shown
from support.scripted_engine import CLOSE, HANG, RESET, ScriptedEngine, Step
from yarl import URL

from engines.base import MAX_LOAD_BYTES
from engines.exposition import Scrape
from engines.registry import make
from gateway.errors import SettingsError
from gateway.fleet.gpus import NAMES, Gpus, GpuTimes
from gateway.fleet.registry import Member, Registry
from gateway.settings import load
from gateway.upstream import Upstream

QUICK = GpuTimes(every_s=0.02, limit_s=0.3, counts_s=0.4)
MIB = 1 << 20
USED, TOTAL = "interlock_engine_gpu_memory_used_bytes", "interlock_engine_gpu_memory_total_bytes"
BUSY = "interlock_engine_gpu_utilization_ratio"


class Watched:
    """Engines whose GPUs an exporter tells of."""

    def __init__(self, exporter: ScriptedEngine, registry: Registry, upstream: Upstream) -> None:
        self.exporter = exporter
        self.gpus = Gpus(URL(exporter.url).with_path(PATH), registry, upstream, Scrape(*NAMES).samples, QUICK)

    def values(self) -> dict[tuple[str, str, str], float]:
        """By metric, engine and GPU."""
        return {
            (each.name, each.labels["engine"], each.labels["gpu"]): each.value
            for family in shown(self.gpus.metrics())
            for each in family.samples
        }

    async def until(self, happened: Callable[[dict[tuple[str, str, str], float]], bool]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                while not happened(self.values()):
                    await asyncio.sleep(0.01)
        assert happened(self.values()), self.values()


@contextlib.asynccontextmanager
async def watched(gpus: list[FakeGpu], **engines: tuple[str, ...]) -> AsyncIterator[Watched]:
    members = [
        Member(id=name, model="m", engine=make("vllm"), root=URL("http://127.0.0.1:9"), gpus=names)
        for name, names in engines.items()
    ]
    async with ScriptedEngine().running() as exporter, Upstream() as upstream:
        says(exporter, gpus)
        found = Watched(exporter, Registry(members), upstream)
        task = asyncio.create_task(found.gpus.run())
        try:
            yield found
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_each_engine_has_its_gpus_by_index_and_by_uuid_in_base_units() -> None:
    first, second = FakeGpu(0, "GPU-a"), FakeGpu(1, "GPU-b")
    second.says |= {"GPU_UTIL": 100, "FB_TOTAL": 8192}
    async with watched([first, second], a=("0",), b=("GPU-b", "0"), c=()) as found:
        await found.until(bool)
        values = found.values()
    assert values[BUSY, "a", "0"] == 0.4
    assert values[USED, "a", "0"] == 1000 * MIB
    assert values[TOTAL, "a", "0"] == 4096 * MIB, "used, free and reserved"
    assert values[TOTAL, "b", "GPU-b"] == 8192 * MIB
    assert values[BUSY, "b", "GPU-b"] == 1.0
    assert values["interlock_engine_gpu_power_watts", "b", "0"] == 250.5
    assert values["interlock_engine_gpu_temperature_celsius", "b", "0"] == 51
    assert {engine for _, engine, _ in values} == {"a", "b"}
    assert len(values) == 3 * 5


@pytest.mark.parametrize(
    ("quantity", "value"), [("GPU_UTIL", 101), ("GPU_UTIL", -1), ("GPU_UTIL", "NaN"), ("GPU_UTIL", "+Inf"), ("GPU_UTIL", "x")]
)
async def test_a_figure_that_cannot_be_is_none(quantity: str, value: float | str) -> None:
    gpu = FakeGpu(0, "GPU-a")
    gpu.says[quantity] = value
    async with watched([gpu], a=("0",)) as found:
        await found.until(lambda values: (USED, "a", "0") in values)
        assert (BUSY, "a", "0") not in found.values()


async def test_memory_without_its_parts_is_not_known() -> None:
    gpu = FakeGpu(0, "GPU-a", says={"FB_USED": 10.0})
    async with watched([gpu], a=("0",)) as found:
        await found.until(bool)
        assert found.values() == {(USED, "a", "0"): 10 * MIB}


async def test_what_a_partitioned_gpu_says_several_times_is_not_known() -> None:
    gpu, part = FakeGpu(0, "GPU-a"), FakeGpu(0, "GPU-a", says={"FB_USED": 1.0, "FB_FREE": 2.0})
    async with watched([gpu, part], a=("0",)) as found:
        await found.until(bool)
        assert {name for name, _, _ in found.values()} & {USED, TOTAL} == set()
        assert found.values()[BUSY, "a", "0"] == 0.4


async def test_an_exporter_that_is_down_or_stale_shows_nothing_and_is_one_line_of_the_log() -> None:
    bad: list[list[Step]] = [
        answer(b"", "500 Oops"),
        answer(b"<html>"),
        answer(b"x" * (MAX_LOAD_BYTES + 10)),
        [RESET],
        [HANG],
        [CLOSE],
    ]
    async with watched([FakeGpu(0, "GPU-a")], a=("0",)) as found:
        await found.until(bool)
        with capture_logs() as logs:
            for steps in bad:
                found.exporter.answers[PATH] = steps
                await asyncio.sleep(0.05)
            await found.until(lambda values: not values)
            says(found.exporter, [FakeGpu(0, "GPU-a")])
            await found.until(bool)
    assert [(each["log_level"], each["event"].partition(":")[0]) for each in logs] == [
        ("warning", "the GPU exporter cannot be read"),
        ("info", "the GPU exporter is read again"),
    ]


async def test_a_gpu_that_the_exporter_does_not_know_is_told_once() -> None:
    twins = [FakeGpu(0, "GPU-a", "node-1"), FakeGpu(0, "GPU-b", "node-2")]
    with capture_logs() as logs:
        async with watched(twins, a=("7", "GPU-a"), b=("0",)) as found:
            await found.until(bool)
            await asyncio.sleep(0.1)
            assert {(engine, gpu) for _, engine, gpu in found.values()} == {("a", "GPU-a")}
    told = {each["engine"]: each for each in logs}
    assert len(logs) == 2
    assert {each["log_level"] for each in logs} == {"error"}
    assert told["a"]["gpus"] == ("7",)
    assert told["b"]["gpus"] == ("0",), "two machines have it"
    assert told["a"]["known"] == ["GPU-a", "GPU-b"]


async def test_more_gpus_than_are_read_are_told_as_such() -> None:
    with capture_logs() as logs:
        async with watched([FakeGpu(at, f"GPU-{at}") for at in range(90)], a=("0",)):
            async with asyncio.timeout(5):
                while not logs:
                    await asyncio.sleep(0.01)
    assert logs[0]["why"].endswith("or more lines of them than are read")


def test_all_of_a_large_machine_is_read_out_of_a_long_answer() -> None:
    text = exporter_text([FakeGpu(at, f"GPU-{at}") for at in range(80)])
    padding = b'DCGM_FI_DEV_SM_CLOCK{gpu="9"} 1980\n' * ((MAX_LOAD_BYTES - len(text)) // 36)
    assert len(Scrape(*NAMES).samples(padding + text)) == 480


async def test_a_gateway_shows_them() -> None:
    async with ScriptedEngine().running() as engine, ScriptedEngine().running() as exporter:
        says(exporter, [FakeGpu(3, "GPU-a")])
        settings = settings_for(engine.url, engine={"gpus": [3]})
        async with serving(settings, gpu_metrics=f"{exporter.url}{PATH}") as served:
            await served.settled(sample(BUSY, model="m", engine="e", gpu="3"), 0.4)
            assert (await served.chat()).status_code == 200
        async with serving(settings) as served:
            assert not [name for name in await served.metrics() if "_gpu_" in name]


@pytest.mark.parametrize(
    ("gpus", "problem"),
    [
        ("0", "must be a list"),
        ("[a b]", "letters, digits"),
        ("[true]", "string"),
        ("[0, 1, '0']", "names 0 twice"),
    ],
)
def test_names_of_gpus_that_are_none(gpus: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    engine = f"{{url: 'http://127.0.0.1:9', kind: openai, gpus: {gpus}}}"
    file.write_text(f"models: [{{name: m, format: engine, engines: [{engine}]}}]\n")
    with pytest.raises(SettingsError, match=problem):
        load(file, {}, kinds={"openai": make("openai").traits}, formats=(), inspect=lambda _: iter(()))
