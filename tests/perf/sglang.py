"""SGLang's own streaming parsers, as PyPI's `llm-router-utils` copies them, on one call: their cost, and what they make of it.

`make bench` puts the package under .cache/sglang, without what it asks for and its parsers do not need (other versions of what
is installed here). A parser that answers wrongly is no baseline, so each answer is compared with what was written.
"""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.formats.base import Format
from gateway.request import ToolSpec
from gateway.wire import jsonio

ONE_TRY_S = 2.0  # of CPU, after which a parse is given up
TRIES_S = 1.0  # of CPU, after which no further try begins
_STEP = 32


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds a token. `given_up`: they are those of the part that was parsed, and grow. `fault`: `x` where the arguments
    are not those that were written, `~` where only blanks at the ends of the text are lost."""

    us: float
    given_up: bool = False
    fault: str = ""

    def __str__(self) -> str:
        return f"{'>' if self.given_up else ''}{self.us:.1f}{self.fault}"


class Parsers:
    """Those that SGLang has, by its names. Raises `ImportError` where the package is not there."""

    def __init__(self) -> None:
        from llm_router_utils.sglang.srt.entrypoints.openai.protocol import Tool
        from llm_router_utils.sglang.srt.function_call.function_call_parser import FunctionCallParser

        self._tool, self._parser = Tool, FunctionCallParser
        logging.getLogger("llm_router_utils").setLevel(logging.CRITICAL)  # it logs what it cannot read, at each token

    def name_of(self, form: Format) -> str | None:
        """SGLang's name of this format."""
        return next((name for name in (form.name, *form.aliases) if name in self._parser.ToolCallParserEnum), None)

    def cost(self, name: str, tool: ToolSpec, tokens: Sequence[str], written: dict[str, str], tries: int) -> Cost:
        """The best of some tries, of fewer where they take long."""
        costs: list[Cost] = []
        start = time.thread_time()
        while len(costs) < tries and time.thread_time() - start < TRIES_S:
            costs.append(self._try(name, tool, tokens, written))
        return min(costs, key=lambda cost: cost.us)

    def _try(self, name: str, tool: ToolSpec, tokens: Sequence[str], written: dict[str, str]) -> Cost:
        function = {"name": tool.name, "parameters": dict(tool.parameters or {})}
        parser = self._parser([self._tool.model_validate({"type": "function", "function": function})], name)
        arguments: list[str] = []
        start = time.thread_time()
        for at, token in enumerate(tokens, 1):
            arguments += [call.parameters for call in parser.parse_stream_chunk(token)[1]]
            if at % _STEP == 0 and time.thread_time() - start > ONE_TRY_S:
                return Cost((time.thread_time() - start) / at * 1e6, given_up=True)
        arguments += [call.parameters for call in parser.parse_stream_end()[1]]
        arguments.append(_unsent(parser.detector))
        return Cost((time.thread_time() - start) / len(tokens) * 1e6, fault=_fault("".join(arguments), written))


def _unsent(detector: Any) -> str:
    """What SGLang's server adds at an answer's end: the last call's arguments that its parser read but did not give."""
    read, sent = getattr(detector, "prev_tool_call_arr", []), getattr(detector, "streamed_args_for_tool", [])
    if not read or len(sent) < len(read):
        return ""
    whole = read[-1].get("arguments", {})
    text = whole if isinstance(whole, str) else json.dumps(whole, ensure_ascii=False)
    last: str = sent[len(read) - 1]
    return text.removeprefix(last) if text.startswith(last) else ""


def _fault(arguments: str, written: dict[str, str]) -> str:
    try:
        read = jsonio.decode(arguments)
    except ValueError:
        return "x"
    if read == written:
        return ""
    if not isinstance(read, dict) or read.keys() != written.keys():
        return "x"
    return "~" if all(str(read[key]).strip() == text.strip() for key, text in written.items()) else "x"
