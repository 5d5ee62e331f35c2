"""Prints what the formats cost: microseconds of CPU a token, and the growth from 1k to 64k tokens.

A token is four characters and one `feed`. Beside it stands the cost of a loop that only slices the text, in the same run.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

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
TRIES = 5
_LINE = "    for item in items: print(f'{item!r:>{width}}')  # one, two\n"
_ROW = "[1, null, 2.5e3], "
_TOOLS = (ToolSpec("write", None, {"type": "object", "properties": {"text": {"type": "string"}, "rows": {"type": "array"}}}),)


def text_of(tokens: int, line: str = _LINE) -> str:
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


def parse(form: Format, tail: str, tokens: Sequence[str]) -> None:
    """One whole answer, a feed a token."""
    parser = form.parser(ParseOptions(tools=_TOOLS, prompt_tail=tail))
    for token in tokens:
        parser.feed(token)
    parser.finish("stop", Usage())


def best_us(work: Callable[[], object], tokens: int) -> float:
    """Thread CPU a token in microseconds, best of some tries."""
    times = []
    for _ in range(TRIES):
        start = time.thread_time()
        work()
        times.append(time.thread_time() - start)
    return min(times) / tokens * 1e6


def main() -> int:
    """Print the table; 1 if a cost grows by 1.3 or is over 20 microseconds a token."""
    failed = False
    text = text_of(SIZES[-1])
    print(f"slicing alone: {best_us(lambda: all(pieces(text)), SIZES[-1]):.2f} us a token")
    print(f"{'format':<18}{'mode':<16}" + "".join(f"{size:>9}" for size in SIZES) + f"{'growth':>9}")
    for form in {each.name: each for each in registry.load().values()}.values():
        for mode in outputs(form, 1):
            costs = []
            for size in SIZES:
                raw, tail = outputs(form, size)[mode]
                tokens = pieces(raw)
                costs.append(best_us(partial(parse, form, tail, tokens), len(tokens)))
            growth = costs[-1] / costs[0]
            bad = growth >= 1.3 or costs[-1] >= 20
            failed = failed or bad
            print(
                f"{form.name:<18}{mode:<16}" + "".join(f"{cost:>9.2f}" for cost in costs) + f"{growth:>9.2f}{' !' if bad else ''}"
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
