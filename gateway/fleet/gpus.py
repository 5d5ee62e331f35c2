"""What an exporter of DCGM's, NVIDIA's tool that watches GPUs, says of those that engines run on.

Invariant: whatever it answers, or does not, no engine is taken out and no request waits; nothing that it did not say just now is
shown. A GPU is shown under the name that the settings give it, so that no exporter makes series.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import structlog
from yarl import URL

from engines.base import MAX_LOAD_BYTES
from gateway.errors import GatewayError
from gateway.fleet.registry import Registry
from gateway.observe.group import Group
from gateway.observe.series import PAIR, Gauge, Labels
from gateway.upstream import Upstream

_log = structlog.get_logger("interlock.fleet")

_DCGM = "DCGM_FI_DEV_"
_MIB = float(1 << 20)
_MOST = float(1 << 50)
Quantity = Literal["GPU_UTIL", "FB_USED", "FB_FREE", "FB_RESERVED", "FB_TOTAL", "POWER_USAGE", "GPU_TEMP"]
_UNITS: Mapping[Quantity, float] = {  # the exporter's in ours
    "GPU_UTIL": 0.01,
    "FB_USED": _MIB,
    "FB_FREE": _MIB,
    "FB_RESERVED": _MIB,
    "FB_TOTAL": _MIB,
    "POWER_USAGE": 1.0,
    "GPU_TEMP": 1.0,
}
_QUANTITIES: Mapping[str, Quantity] = {f"{_DCGM}{quantity}": quantity for quantity in _UNITS}
NAMES = tuple(_QUANTITIES)
"""The exporter's metrics that are read."""


class Sample(Protocol):
    """One line of a scrape."""

    @property
    def name(self) -> str:
        """The metric's."""

    @property
    def labels(self) -> Mapping[str, str]:
        """By name."""

    @property
    def value(self) -> float:
        """Any float, NaN too."""


@dataclass(frozen=True, slots=True)
class GpuTimes:
    """How often the exporter is asked, how long it may take, and how long its word counts (seconds)."""

    every_s: float = 5.0
    limit_s: float = 3.0
    counts_s: float = 15.0


@dataclass(slots=True)
class _Gpu:
    """One GPU of the exporter's, in our units."""

    index: str
    known: dict[Quantity, float] = field(default_factory=dict)

    @property
    def total_bytes(self) -> float | None:
        """Of its memory; older exporters say it in parts."""
        parts = [self.known.get("FB_USED"), self.known.get("FB_FREE")]
        if "FB_TOTAL" in self.known or None in parts:
            return self.known.get("FB_TOTAL")
        return sum(part or 0.0 for part in parts) + self.known.get("FB_RESERVED", 0.0)


class Gpus:
    """Asks the exporter at `url` until its task is cancelled. `samples` reads those of `NAMES` out of a scrape, and never
    raises."""

    def __init__(
        self,
        url: URL,
        registry: Registry,
        upstream: Upstream,
        samples: Callable[[bytes], Sequence[Sample]],
        times: GpuTimes | None = None,
    ) -> None:
        self._url = url
        self._registry = registry
        self._upstream = upstream
        self._samples = samples
        self._times = times or GpuTimes()
        self._found: Mapping[str, _Gpu] = {}  # by UUID, and by index where that is one GPU's
        self._read_s = -math.inf
        self._failing = False
        self._strangers: Mapping[str, tuple[str, ...]] = {}

    async def run(self) -> None:
        """Asks for ever."""
        while True:
            await self._ask()
            await asyncio.sleep(self._times.every_s)

    def metrics(self) -> Group:
        """Of each engine's GPUs, while the exporter tells of them."""

        def of(value: Callable[[_Gpu], float | None]) -> Callable[[], Iterator[tuple[Labels, float]]]:
            return lambda: self._values(value)

        labels = (*PAIR, "gpu")
        families = (
            Gauge(
                "interlock_engine_gpu_utilization_ratio",
                "The share of the time in which the GPU ran anything.",
                labels,
                of(lambda gpu: gpu.known.get("GPU_UTIL")),
            ),
            Gauge(
                "interlock_engine_gpu_memory_used_bytes",
                "Memory of the GPU in use, whoever uses it.",
                labels,
                of(lambda gpu: gpu.known.get("FB_USED")),
            ),
            Gauge("interlock_engine_gpu_memory_total_bytes", "Memory of the GPU.", labels, of(lambda gpu: gpu.total_bytes)),
            Gauge(
                "interlock_engine_gpu_power_watts", "What the GPU draws.", labels, of(lambda gpu: gpu.known.get("POWER_USAGE"))
            ),
            Gauge(
                "interlock_engine_gpu_temperature_celsius",
                "How warm the GPU is.",
                labels,
                of(lambda gpu: gpu.known.get("GPU_TEMP")),
            ),
        )
        return Group("GPUs (`interlock serve --gpu-metrics URL`)", families)

    def _values(self, value: Callable[[_Gpu], float | None]) -> Iterator[tuple[Labels, float]]:
        if self._registry.now_s() - self._read_s > self._times.counts_s:
            return
        for member in self._registry.members.values():
            for name in member.gpus:
                gpu = self._found.get(name)
                if gpu is not None and (found := value(gpu)) is not None:
                    yield (member.model, member.id, name), found

    async def _ask(self) -> None:
        limit_s = self._times.limit_s
        try:
            status, body = await self._upstream.get(self._url, api_key=None, limit_s=limit_s, max_bytes=MAX_LOAD_BYTES + 1)
            why = "" if status == 200 else f"it answers with status {status}"
        except GatewayError as error:
            why, body = error.message, b""
        found = {} if why else _gpus(self._samples(body))
        if not found:
            self._fails(
                why or f"no GPU can be read in it: it has none of {', '.join(NAMES)}, or more lines of them than are read"
            )
            return
        self._found, self._read_s = found, self._registry.now_s()
        if self._failing:
            self._failing = False
            _log.info("the GPU exporter is read again", url=str(self._url))
        self._look_for_strangers()

    def _fails(self, why: str) -> None:
        if not self._failing:
            self._failing = True
            _log.warning("the GPU exporter cannot be read: GPUs are not shown until it can", url=str(self._url), why=why)

    def _look_for_strangers(self) -> None:
        """GPUs of the settings that the exporter does not know, told whenever they are others."""
        members = self._registry.members.values()
        unknown = {each.id: tuple([name for name in each.gpus if name not in self._found]) for each in members}
        strangers = {engine: names for engine, names in unknown.items() if names}
        if strangers != self._strangers:
            for engine, names in strangers.items():
                _log.error(
                    "the GPU exporter does not know the GPUs that the settings name, or knows several by one index: they are not "
                    "shown",
                    engine=engine,
                    gpus=names,
                    known=sorted(self._found),
                )
        self._strangers = strangers


def _gpus(samples: Sequence[Sample]) -> Mapping[str, _Gpu]:
    """By UUID, and by index where that is one GPU's alone: several machines have the same. A quantity that a GPU has several of,
    as one that is partitioned, is not known."""
    gpus: dict[str, _Gpu] = {}
    said: Counter[tuple[str, str]] = Counter()
    for sample in samples:
        index = sample.labels.get("gpu", "")
        uuid = sample.labels.get("UUID") or f"index {index}"
        gpu = gpus.setdefault(uuid, _Gpu(index))
        quantity = _QUANTITIES[sample.name]
        said[uuid, quantity] += 1
        value = sample.value * _UNITS[quantity]
        if said[uuid, quantity] == 1 and 0 <= value <= (1.0 if quantity == "GPU_UTIL" else _MOST):
            gpu.known[quantity] = value
        else:
            gpu.known.pop(quantity, None)
    indexes = Counter(gpu.index for gpu in gpus.values())
    return gpus | {gpu.index: gpu for gpu in gpus.values() if indexes[gpu.index] == 1}
