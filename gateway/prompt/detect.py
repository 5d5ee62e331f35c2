"""Which format a model writes, told from its own template: the one whose parser reads back the call that the template wrote.

First cut: sure or nothing. Two candidates, none, or a thought that no candidate explains are a question to the operator.
"""

from collections.abc import Mapping

from gateway.formats.base import Format, ParseOptions
from gateway.prompt.prompter import Prompter
from gateway.request import (
    GenerateRequest,
    Message,
    ParseFailure,
    ToolCall,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolSpec,
    Usage,
)
from gateway.wire.jsonio import JsonError, decode

PLAIN = "plain"
_USER_MARK = "detectusermark"
_TOOL = ToolSpec("detect_function", "A probe.", {"type": "object", "properties": {"detect_key": {"type": "string"}}})
_ARGUMENTS: Mapping[str, str] = {"detect_key": "detect value"}
_PROBE = GenerateRequest(
    model="",
    messages=(
        Message("user", _USER_MARK),
        Message("assistant", None, tool_calls=(ToolCall("callprobe", _TOOL.name, '{"detect_key": "detect value"}'),)),
        Message("tool", "detectresultmark", tool_call_id="callprobe"),
    ),
    tools=(_TOOL,),
)


class FormatUnknown(Exception):
    """The template does not tell; the message says what to do."""


def detect_format(prompter: Prompter, template: str, formats: Mapping[str, Format]) -> Format:
    """The format of the model behind `prompter` (`tools: native`), whose template's source is given. Raises FormatUnknown."""
    can = prompter.capabilities
    if can.tools != "yes" or can.tool_calls != "yes":
        if can.reasoning is not None or "</think>" in template:
            raise FormatUnknown("the model thinks, but its template shows no tool calls to tell its format by: name the format")
        return formats[PLAIN]
    written = prompter.prompt(_PROBE).text.rpartition(_USER_MARK)[2]
    own = {each.name: each for each in formats.values() if each.name != PLAIN}
    fitting = [each for each in own.values() if _reads(each, written)]
    if len(fitting) != 1:
        found = (
            f"{len(fitting)} formats fit the template ({', '.join(each.name for each in fitting)})"
            if fitting
            else "no format of this version fits the template"
        )
        raise FormatUnknown(f"{found} by the way it writes a tool call: name the format, or `plain` to read no calls")
    return fitting[0]


def _reads(candidate: Format, written: str) -> bool:
    """Whether the candidate reads exactly the probe's call out of the rendered turn, without a fault."""
    parser = candidate.parser(ParseOptions(tools=(_TOOL,)))
    deltas = [*parser.feed(written), *parser.finish("stop", Usage())]
    names = [delta.name for delta in deltas if isinstance(delta, ToolCallStart)]
    ends = sum(isinstance(delta, ToolCallEnd) for delta in deltas)
    faults = any(isinstance(delta, ParseFailure) for delta in deltas)
    arguments = "".join(delta.text for delta in deltas if isinstance(delta, ToolCallArguments))
    try:
        return names == [_TOOL.name] and ends == 1 and not faults and decode(arguments) == _ARGUMENTS
    except JsonError:
        return False
