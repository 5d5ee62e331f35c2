"""Prints what the formats cost: microseconds of CPU a token, and the growth from 1k to 64k tokens.

A token is four characters and one `feed`. Beside it stand, in the same run, the cost of a loop that only slices the text and
that of SGLang's own parsers on a call with a long text. Costs are the best of five tries, at 64k tokens of as many as it takes
to be at most 1.2 times that at 1k: a further try could only lower it.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from perf.sglang import Cost, Parsers
from support.formats import marker_ids, tokens_of

from gateway.formats import registry
from gateway.formats.base import Format, ParseOptions
from gateway.formats.codecs.brace_delimited import BraceDelimited
from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.codecs.named_json import NamedJson
from gateway.formats.codecs.nested_xml import NestedXml
from gateway.formats.codecs.python_calls import PythonCalls
from gateway.formats.codecs.tagged import Tagged
from gateway.formats.compiled import CompiledFormat
from gateway.formats.spec import Headers
from gateway.request import ToolSpec, Usage
from gateway.wire import jsonio

SIZES = (1_000, 8_000, 64_000)
BESIDE = SIZES[:2]  # SGLang's parsers take minutes for more
TRIES = 5
ROUNDS = 4
GROWTH, LIMIT_US = 1.3, 20.0
SETTLED = 1.2
TRANSCRIPTS = Path(__file__).parents[1] / "data" / "formats"
LOOK = ToolSpec("look", None, {"type": "object", "properties": {"path": {"type": "string"}}})
LINE = "    for item in items: print(f'{item!r:>{width}}')  # one, two\n"
_ROW = "[1, null, 2.5e3], "
_TOOLS = (ToolSpec("write", None, {"type": "object", "properties": {"text": {"type": "string"}, "rows": {"type": "array"}}}),)


def text_of(tokens: int, line: str = LINE) -> str:
    """Ordinary text of so many tokens."""
    return (line * (tokens * 4 // len(line) + 1))[: tokens * 4]


def rows_of(tokens: int) -> str:
    """The beginning of a list of about so many tokens."""
    return _ROW * (tokens * 4 // len(_ROW) + 1)


def outputs(form: Format, tokens: int) -> dict[str, tuple[str, str]]:
    """What a model of this format writes, by the mode that it measures, with the end of its prompt."""
    if not isinstance(form, CompiledFormat):
        raise TypeError(f"{form.name} is no compiled format")
    spec, text = form.program.spec, text_of(tokens)
    if spec.headers is not None:
        return _messages(spec.headers, text, rows_of(tokens))
    found = {"content": (text, "")}
    if spec.reasoning is not None:
        found["reasoning"] = (f"{text}{spec.reasoning.closer.text}ok", f"{spec.reasoning.opener.text}\n")
    if spec.blocks:
        block = spec.blocks[0]
        call = _CALLS[type(block.codec)]
        for mode, value in (("string", text), ("rows", f"[{rows_of(tokens)} 0]")):
            body = call(block.codec, block.opener.text, mode, value)
            found[mode] = (f"{block.opener.text}{body}{block.closer.text if block.closer else ''}", "")
    return found


def _json(mode: str, value: str) -> str:
    return f'{{"text": {jsonio.encode(value).decode()}}}' if mode == "string" else f'{{"rows": {value}}}'


def _messages(headers: Headers, text: str, rows: str) -> dict[str, tuple[str, str]]:
    def message(channel: str, said: str) -> str:
        return f"{headers.channel.text}{channel}{headers.body.text}{said}"

    begin, end = f"{headers.start.text}assistant", headers.ends[0].text
    call = f"{headers.content[-1]} to={headers.functions}write {headers.constrain.text}json"
    found = {
        "content": message(headers.content[0], text),
        "reasoning": message(headers.thoughts[0], f"{text}{end}{begin}") + message(headers.content[0], "ok"),
        "string": message(call, _json("string", text)),
        "rows": message(call, _json("rows", f"[{rows} 0]")),
    }
    return {mode: (raw, begin) for mode, raw in found.items()}


def _in_wrapper(codec: JsonInWrapper, opener: str, mode: str, value: str) -> str:
    arguments = _json(mode, value)
    call = (
        f'{{"{codec.name_key}": "write", "{codec.arguments_keys[0]}": {arguments}}}'
        if codec.name_key
        else f'{{"write": {arguments}}}'
    )
    return f"{'' if opener.endswith('[') else '['}{call}]" if codec.array else call


def _named(codec: NamedJson, opener: str, mode: str, value: str) -> str:
    name = "functions.write:0" if codec.numbered else "write"
    kind = f"function{codec.kind_end}" if codec.kind_end else ""
    fence = codec.fence_open[0] if codec.fence_open else ""
    return f"{codec.call_open}{kind}{name}{codec.name_end}{fence}{_json(mode, value)}{codec.fence_close}{codec.call_close}"


def _tagged(codec: Tagged, opener: str, mode: str, value: str) -> str:
    key = "text" if mode == "string" else "rows"
    flag = f' {codec.flag}="{codec.text_flag if mode == "string" else "json"}"' if codec.flag else ""
    line = "\n" if codec.trim else ""
    name = f'{codec.call_open}"write"{codec.name_end}' if codec.name_end else f"{codec.call_open}write\n"
    quoted_key = f'"{key}"{flag}' if codec.key_end == ">" or flag else key
    parameter = f"{codec.key_open}{quoted_key}{codec.key_end}{codec.value_open}{line}{value}{line}{codec.value_close}"
    return name + parameter + (codec.call_close if codec.call_open else "")


def _python(codec: PythonCalls, opener: str, mode: str, value: str) -> str:
    return f"[write(text={value!r})]" if mode == "string" else f"[write(rows={value.replace('null', 'None')})]"


def _braces(codec: BraceDelimited, opener: str, mode: str, value: str) -> str:
    inside = f"text:{codec.delimiter}{value}{codec.delimiter}" if mode == "string" else f"rows:{value}"
    return f"{codec.prefix}write{{{inside}}}"


def _nested(codec: NestedXml, opener: str, mode: str, value: str) -> str:
    key = "text" if mode == "string" else "rows"
    tags = [f'<{codec.call} name="write">', f"<{key}>", f"</{key}>", f"</{codec.call}>"]
    first, begin, end, last = (codec.prefix + tag for tag in tags)
    return f"{first}{begin}{value}{end}{last}"


_CALLS: Mapping[type, Callable[[Any, str, str, str], str]] = {
    JsonInWrapper: _in_wrapper,
    NamedJson: _named,
    Tagged: _tagged,
    PythonCalls: _python,
    BraceDelimited: _braces,
    NestedXml: _nested,
}


def pieces(text: str) -> list[str]:
    """The text as tokens."""
    return [text[at : at + 4] for at in range(0, len(text), 4)]


def one_call(form: Format, text: str) -> str:
    """The call of the family's first transcript with this text as its argument, as the model writes it."""
    rows = yaml.safe_load((TRANSCRIPTS / f"{form.name}.yaml").read_text("utf-8"))
    raw = next(row["raw"] for row in rows if row["name"] == "single")
    path = next(value for value in ('"/tmp"', "'/tmp'", "/tmp") if value in raw)  # noqa: S108  what the transcript says
    if path.startswith("'"):
        return str(raw.replace(path, "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"))
    return str(raw.replace(path, jsonio.encode(text).decode() if path.startswith('"') else text))


def with_markers(form: Format, raw: str) -> list[str]:
    """The text as tokens, of which those that are special in the family's vocabulary are whole: SGLang's parsers count on it."""
    ids = marker_ids(form.program.spec) if isinstance(form, CompiledFormat) else {}
    return [token for _, token in tokens_of(raw, ids)]


def parse(form: Format, tail: str, tokens: Sequence[str], tools: tuple[ToolSpec, ...] = _TOOLS) -> None:
    """One whole answer, a feed a token."""
    parser = form.parser(ParseOptions(tools=tools, prompt_tail=tail))
    for token in tokens:
        parser.feed(token)
    parser.finish("stop", Usage())


def best_us(work: Callable[[], object], tokens: int, enough_us: float = 0.0) -> float:
    """Thread CPU a token in microseconds, best of some tries, or the first that is low enough."""
    best = float("inf")
    for _ in range(TRIES):
        start = time.thread_time()
        work()
        best = min(best, (time.thread_time() - start) / tokens * 1e6)
        if best <= enough_us:
            break
    return best


@dataclass(slots=True)
class Row:
    """What one kind of output costs at each size. Measured again it keeps its lowest costs: a busy moment of the machine makes
    one higher, and nothing makes one lower."""

    form: Format
    mode: str
    costs_us: list[float] = field(default_factory=lambda: [float("inf")] * len(SIZES))

    @property
    def growth(self) -> float:
        return self.costs_us[-1] / self.costs_us[0]

    @property
    def over(self) -> bool:
        return self.growth >= GROWTH or self.costs_us[-1] >= LIMIT_US

    def measure(self) -> None:
        for at, size in enumerate(SIZES):
            raw, tail = outputs(self.form, size)[self.mode]
            tokens = pieces(raw)
            enough_us = SETTLED * self.costs_us[0] if size == SIZES[-1] else 0.0
            self.costs_us[at] = min(self.costs_us[at], best_us(partial(parse, self.form, tail, tokens), len(tokens), enough_us))

    def __str__(self) -> str:
        costs = "".join(f"{cost:>9.2f}" for cost in self.costs_us)
        return f"{self.form.name:<18}{self.mode:<16}{costs}{self.growth:>9.2f}{' !' if self.over else ''}"


def own_costs(forms: Sequence[Format]) -> bool:
    """Prints the table of every format; true if each cost is within its limits, at the second to fourth look if need be."""
    print(f"{'format':<18}{'mode':<16}" + "".join(f"{size:>9}" for size in SIZES) + f"{'growth':>9}")
    rows = [Row(form, mode) for form in forms for mode in outputs(form, 1)]
    for row in rows:
        row.measure()
        print(row, flush=True)
    over = [row for row in rows if row.over]
    for number in range(2, ROUNDS + 1):
        if over:
            print(f"Over its limits ({GROWTH} times, {LIMIT_US:.0f} us), measured again ({number} of {ROUNDS}):")
        for row in over:
            row.measure()
            print(row, flush=True)
        over = [row for row in over if row.over]
    return not over


def beside_sglang(forms: Sequence[Format]) -> None:
    """Prints what a call with a long text costs SGLang's parsers and ours."""
    try:
        parsers = Parsers()
    except ImportError as missing:
        print(f"SGLang's parsers are not there to compare with ({missing}); `make bench` installs them.")
        return
    print("A call with a long text, beside SGLang's parsers. >: given up; ~: the text's outer blanks are lost; x: it is wrong.")
    columns = "".join(f"{f'{whose} {size}':>14}" for whose in ("ours", "SGLang") for size in BESIDE)
    print(f"{'format':<18}{'SGLang has it as':<18}{columns}{'times':>9}")
    for form in forms:
        if (name := parsers.name_of(form)) is None:
            continue
        ours: list[float] = []
        theirs: list[Cost] = []
        for size in BESIDE:
            text = text_of(size)
            tokens = with_markers(form, one_call(form, text))
            ours.append(best_us(partial(parse, form, "", tokens, (LOOK,)), len(tokens)))
            theirs.append(parsers.cost(name, LOOK, tokens, {"path": text}, TRIES))
        times = f"{'>' if theirs[-1].given_up else ''}{theirs[-1].us / ours[-1]:.0f}"
        shown = "".join(f"{cost:>14.2f}" for cost in ours) + "".join(f"{cost!s:>14}" for cost in theirs)
        print(f"{form.name:<18}{name:<18}{shown}{times:>9}", flush=True)


def main() -> int:
    """Print the tables; 1 if a cost grows by 1.3 or is over 20 microseconds a token."""
    forms = list({each.name: each for each in registry.load().values()}.values())
    text = text_of(SIZES[-1])
    print(f"slicing alone: {best_us(lambda: all(pieces(text)), SIZES[-1]):.2f} us a token")
    within = own_costs(forms)
    beside_sglang(forms)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
