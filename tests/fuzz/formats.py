"""Coverage-guided fuzzing of every format: `make fuzz`. Outputs are transcripts with markers deleted, repeated and inserted.

What must hold of any output: nothing raises, every character is accounted for once, any split gives the same deltas, and with
calls held back until they are whole no text of the model is lost.
"""

import sys
from pathlib import Path

import atheris
import yaml

with atheris.instrument_imports(include=["gateway.formats"]):
    from support import formats as run

    from gateway.formats import registry
    from gateway.formats.compiled import CompiledFormat
    from gateway.request import ContentText, ParseFailure, ToolSpec

DATA = Path(__file__).parents[1] / "data" / "formats"
TOOLS = (ToolSpec("look", None, {"properties": {"path": {"type": "string"}, "depth": {"type": "integer"}}}), ToolSpec("noop"))
FAMILIES = sorted({each.name: each.program for each in registry.load().values() if isinstance(each, CompiledFormat)}.items())
SEEDS = {name: [row["raw"] for row in yaml.safe_load((DATA / f"{name}.yaml").read_text("utf-8"))] for name, _ in FAMILIES}
MAX_CHANGES = 6


def changed(data: atheris.FuzzedDataProvider, raw: str, markers: list[str]) -> str:
    """The output with pieces taken out, said twice, or markers and text put in."""
    for _ in range(data.ConsumeIntInRange(0, MAX_CHANGES)):
        at = data.ConsumeIntInRange(0, len(raw))
        end = data.ConsumeIntInRange(at, min(len(raw), at + 40))
        kind = data.ConsumeIntInRange(0, 3)
        if kind == 0:
            raw = raw[:at] + raw[end:]
        elif kind == 1:
            raw = raw[:end] + raw[at:end] + raw[end:]
        elif kind == 2 and markers:
            raw = raw[:at] + markers[data.ConsumeIntInRange(0, len(markers) - 1)] + raw[at:]
        else:
            raw = raw[:at] + data.ConsumeUnicodeNoSurrogates(8) + raw[at:]
    return raw


def one(given: bytes) -> None:
    """One output of one family."""
    data = atheris.FuzzedDataProvider(given)
    name, program = FAMILIES[data.ConsumeIntInRange(0, len(FAMILIES) - 1)]
    seeds = SEEDS[name]
    markers = [marker.text for marker in program.spec.markers]
    raw = changed(data, seeds[data.ConsumeIntInRange(0, len(seeds) - 1)], markers)
    tail = markers[0] if markers and data.ConsumeBool() else ""
    case = run.Case(raw, TOOLS, tail, "length" if data.ConsumeBool() else "stop", hold=data.ConsumeBool())
    whole, spans = run.accounted(program, case, [raw])
    assert not case.hold or "failure" not in {kind for _, kind in spans}, f"{name}: {raw!r}"
    content = "".join(delta.text for delta in whole if isinstance(delta, ContentText))
    assert content == "".join(text for text, kind in spans if kind == "content"), f"{name}: {raw!r}"
    cuts = [data.ConsumeIntInRange(0, len(raw)) for _ in range(data.ConsumeIntInRange(0, 8))]
    pieces, _ = run.accounted(program, case, run.by_cuts(raw, cuts))
    assert pieces == whole, f"{name}: {raw!r} cut at {cuts}"
    kinds = [failure.kind for failure in whole if isinstance(failure, ParseFailure)]
    assert "internal" not in kinds, f"{name}: {raw!r}"


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
