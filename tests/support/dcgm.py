"""A DCGM exporter, as NVIDIA's `dcgm-exporter` writes its text: what a test says of each GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from support.scripted_engine import CLOSE, ScriptedEngine, Step

UNITS: Mapping[str, float] = {
    "GPU_UTIL": 40,
    "FB_USED": 1000,
    "FB_FREE": 3000,
    "FB_RESERVED": 96,
    "POWER_USAGE": 250.5,
    "GPU_TEMP": 51,
}
PATH = "/metrics"


@dataclass
class FakeGpu:
    """One GPU: `says` are the exporter's metrics, in its units, without their prefix."""

    index: int
    uuid: str
    host: str = "node-1"
    says: dict[str, float | str] = field(default_factory=lambda: dict[str, float | str](UNITS))

    def lines(self) -> list[str]:
        labels = (
            f'gpu="{self.index}",UUID="{self.uuid}",device="nvidia{self.index}",modelName="NVIDIA H200",Hostname="{self.host}"'
        )
        return [f"DCGM_FI_DEV_{name}{{{labels}}} {value}" for name, value in self.says.items()]


def exporter_text(gpus: Sequence[FakeGpu]) -> bytes:
    """Its answer's body."""
    lines = ["# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).", "# TYPE DCGM_FI_DEV_SM_CLOCK gauge"]
    lines += [line for gpu in gpus for line in ('DCGM_FI_DEV_SM_CLOCK{gpu="9"} 1980', *gpu.lines())]
    return "\n".join(lines).encode() + b"\n"


def says(exporter: ScriptedEngine, gpus: Sequence[FakeGpu]) -> None:
    """From now on it tells of these."""
    exporter.answers[PATH] = answer(exporter_text(gpus))


def answer(body: bytes, status: str = "200 OK") -> list[Step]:
    """One HTTP answer of text."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\n\r\n"
    return [head.encode() + body, CLOSE]
