"""Prints what the formats cost: microseconds of CPU a token, and the growth from 1k to 64k tokens.

A token is four characters and one `feed`. Beside it stands the cost of a loop that only slices the text, in the same run.
"""

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from gateway.formats import registry
from gateway.formats.base import Format, ParseOptions
from gateway.request import ToolSpec, Usage

SIZES = (1_000, 8_000, 64_000)
TRIES = 5
_LINE = "    for item in items: print(f'{item!r:>{width}}')  # one, two\n"
_TOOLS = (ToolSpec("write", None, {"type": "object", "properties": {"text": {"type": "string"}, "rows": {"type": "array"}}}),)


def text_of(tokens: int, line: str = _LINE) -> str:
    """Ordinary text of so many tokens."""
    return (line * (tokens * 4 // len(line) + 1))[: tokens * 4]


def outputs(form: Format, tokens: int) -> dict[str, tuple[str, str]]:
    """What a model of this format writes, by the mode that it measures, with the end of its prompt."""
    text = text_of(tokens)
    found = {"content": (text, "")}
    if "</think>" in form.visible:
        found["reasoning"] = (text + "</think>ok", "<think>\n")
    if form.call_syntax is not None:
        syntax = form.call_syntax
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        head = f'{syntax.opener}{{"{syntax.name_key}": "write", "{syntax.arguments_key}": '
        found["json string"] = (f'{head}{{"text": "{escaped}"}}}}{syntax.closer}', "")
        found["json rows"] = (f'{head}{{"rows": [{text_of(tokens, "[1, null, 2.5e3], ")} 0]}}}}{syntax.closer}', "")
    elif form.name == "qwen3_coder":
        end = "\n</parameter>\n</function>\n</tool_call>"
        found["tagged string"] = (f"<tool_call>\n<function=write>\n<parameter=text>\n{text}{end}", "")
        found["tagged rows"] = (f"<tool_call>\n<function=write>\n<parameter=rows>\n[{text_of(tokens, '1, null, ')} 0]{end}", "")
    return found


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
    print(f"{'format':<14}{'mode':<16}" + "".join(f"{size:>9}" for size in SIZES) + f"{'growth':>9}")
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
                f"{form.name:<14}{mode:<16}" + "".join(f"{cost:>9.2f}" for cost in costs) + f"{growth:>9.2f}{' !' if bad else ''}"
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
