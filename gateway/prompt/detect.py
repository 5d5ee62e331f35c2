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
    ReasoningText,
    ToolCall,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolSpec,
    Usage,
)
from gateway.wire.jsonio import decode

PLAIN = "plain"
_USER_MARK, _RESULT_MARK = "detectusermark", "detectresultmark"
_THOUGHT = "<think>\ndetect thought\n</think>\n\n"
_TOOL = ToolSpec("detect_function", "A probe.", {"type": "object", "properties": {"detect_key": {"type": "string"}}})
_ARGUMENTS: Mapping[str, str] = {"detect_key": "detect value"}
_PROBE = GenerateRequest(
    model="",
    messages=(
        Message("user", _USER_MARK),
        Message("assistant", None, tool_calls=(ToolCall("callprobe", _TOOL.name, '{"detect_key": "detect value"}'),)),
        Message("tool", _RESULT_MARK, tool_call_id="callprobe"),
    ),
    tools=(_TOOL,),
)


class FormatUnknown(Exception):
    """The template does not tell; the message says what to do."""


def detect_format(prompter: Prompter, template: str, formats: Mapping[str, Format]) -> Format:
    """The format of the model behind `prompter` (`tools: native`), whose template's source is given. Raises FormatUnknown."""
    can = prompter.capabilities
    thinks = can.reasoning is not None or "</think>" in template
    if can.tools != "yes" or can.tool_calls != "yes":
        if thinks:
            raise FormatUnknown("the model thinks, but its template shows no tool calls to tell its format by: name the format")
        return formats[PLAIN]
    # What the model is to write: not the result after it, nor the thought that many templates open in the next turn.
    written = prompter.prompt(_PROBE).text.rpartition(_USER_MARK)[2].partition(_RESULT_MARK)[0]
    own = {each.name: each for each in formats.values() if each.name != PLAIN}
    fitting = [each for each in own.values() if _reads(each, written) and (_reads_thoughts(each) or not thinks)]
    if len(fitting) != 1:
        names = f" ({', '.join(each.name for each in fitting)})" if fitting else ""
        raise FormatUnknown(
            f"{len(fitting) or 'no'} formats of this version{names} read what the template writes, a tool call"
            f"{' and thoughts' if thinks else ''}: name the format, or `plain` to read no calls"
        )
    return fitting[0]


def _reads(candidate: Format, written: str) -> bool:
    """Whether the candidate reads exactly the probe's call out of the rendered turn, without a fault."""
    parser = candidate.parser(ParseOptions(tools=(_TOOL,)))
    deltas = [*parser.feed(written), *parser.finish("stop", Usage())]
    names = [delta.name for delta in deltas if isinstance(delta, ToolCallStart)]
    ends = sum(isinstance(delta, ToolCallEnd) for delta in deltas)
    faults = any(isinstance(delta, ParseFailure) for delta in deltas)
    arguments = "".join(delta.text for delta in deltas if isinstance(delta, ToolCallArguments))
    return names == [_TOOL.name] and ends == 1 and not faults and decode(arguments) == _ARGUMENTS


def _reads_thoughts(candidate: Format) -> bool:
    """Whether the candidate takes a thought for one."""
    return any(isinstance(delta, ReasoningText) for delta in candidate.parser(ParseOptions()).feed(_THOUGHT))
