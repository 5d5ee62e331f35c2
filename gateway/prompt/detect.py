"""Which format a model writes, told from its own template: the one whose parser reads back the call that the template wrote.

Sure or nothing: formats that read the call and differ in what they would read elsewhere are a question to the operator, and so
is a thought that none of them explains. Formats that differ in their names alone are one.
"""

from collections.abc import Iterator, Mapping, Sequence

from gateway.errors import BadRequest
from gateway.formats.base import Format, ParseOptions
from gateway.prompt.prompter import Prompter
from gateway.request import (
    ContentText,
    Delta,
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
_USER_MARK, _TEXT_MARK, _RESULT_MARK = "detectusermark", "detecttextmark", "detectresultmark"
_TOOL = ToolSpec("detect_function", "A probe.", {"type": "object", "properties": {"detect_key": {"type": "string"}}})
_ARGUMENTS: Mapping[str, str] = {"detect_key": "detect value"}


class FormatUnknown(Exception):
    """The template does not tell; the message says what to do."""


def detect_format(prompter: Prompter, formats: Mapping[str, Format]) -> Format:
    """The format of the model behind `prompter` (`tools: native`). It is `plain` only where the template shows no calls, states
    no tools and knows no thoughts. Raises FormatUnknown."""
    can, template = prompter.capabilities, "\n".join(prompter.sources.values())
    signs = {each.thought_sign for each in _candidates(formats, "") if each.thought_sign}
    thinks = can.reasoning is not None or any(sign in template for sign in signs)
    if can.tool_calls != "yes":
        knows = [what for what, known in (("thinks", thinks), ("is told of tools", can.tools == "yes")) if known]
        if not knows:
            return formats[PLAIN]
        reason = can.refusals.get("tool_calls")
        raise FormatUnknown(
            f"the model {' and '.join(knows)}, but its template shows no tool calls to tell its format by"
            f"{f' ({reason})' if reason else ''}: name the format"
        )
    fitting = _fitting(prompter, template, formats, thinks=thinks)
    if not fitting or not all(each.reads_as(fitting[0], thoughts=thinks) for each in fitting):
        names = f" ({', '.join(each.name for each in fitting)})" if fitting else ""
        raise FormatUnknown(
            f"{len(fitting) or 'no'} formats of this version{names} read what the template writes, a tool call"
            f"{' and thoughts' if thinks else ''}: name the format, or `plain` to read no calls"
        )
    return max(fitting, key=lambda each: len(each.aliases))  # the one that most models are said to write


def _candidates(formats: Mapping[str, Format], written: str) -> list[Format]:
    """Each format once, and again with the suffix that its tags have in what the template has written."""
    own = [each for each in {each.name: each for each in formats.values()}.values() if each.name != PLAIN]
    return own + [formats[f"{each.name}:{suffix}"] for each in own if (suffix := each.suffix_in(written))]


def _fitting(prompter: Prompter, template: str, formats: Mapping[str, Format], *, thinks: bool) -> list[Format]:
    """The formats that read the template's call; of those the ones that explain most of the template."""
    opening = prompter.capabilities.opening
    written = _written(prompter, None)
    fitting = [each for each in _candidates(formats, written) if _reads(each, written, opening) is not None]
    if thinks:
        fitting = [each for each in fitting if _shows_thoughts(each, template)]
    fitting = [each for each in fitting if not _leaves_closer(each, template)]
    if len(fitting) > 1:
        unknown = {each.name: sum(text not in template for text in each.spelled) for each in fitting}
        fitting = [each for each in fitting if unknown[each.name] == min(unknown.values())]
        explained = {each.name: len(each.spelled) for each in fitting}
        fitting = [each for each in fitting if explained[each.name] == max(explained.values())]
    if len(fitting) > 1:
        _, mark, after = _written(prompter, _TEXT_MARK).partition(_TEXT_MARK)
        exact = {each.name: mark and _keeps(each, mark, after) for each in fitting}
        fitting = [each for each in fitting if exact[each.name]] or fitting
    return fitting


def _shows_thoughts(candidate: Format, template: str) -> bool:
    """Whether the template holds the candidate's sign of a thought; a suffix it may put in by itself."""
    sign = candidate.thought_sign
    return bool(sign) and (sign in template or (":" in candidate.name and sign.partition(":")[0] in template))


def _leaves_closer(candidate: Format, template: str) -> bool:
    """Whether the template closes one of the candidate's tags, `<x>`, by a tag that the candidate would give as content."""
    tags = [text for text in candidate.spelled if text.startswith("<") and text in template]
    closers = [f"</{text[1:]}" for text in tags]
    return any(closer in template and closer not in candidate.spelled for closer in closers)


def _keeps(candidate: Format, text: str, after: str) -> bool:
    """Whether the candidate gives back just the text before the call, and a newline of its own: they differ in how many they take
    for markup. What the template writes after the call is content too."""
    for said in (text, text + "\n"):
        read = _reads(candidate, said + after, "") or ""
        if not read.startswith(said) or read[len(said) :].startswith("\n"):
            return False
    return True


def _written(prompter: Prompter, text: str | None) -> str:
    """What the template writes for a call, with text beside it: not the result after it, nor the thought of the next turn."""
    request = GenerateRequest(
        model="",
        messages=(
            Message("user", _USER_MARK),
            Message("assistant", text, tool_calls=(ToolCall("callprobe", _TOOL.name, '{"detect_key": "detect value"}'),)),
            Message("tool", _RESULT_MARK, tool_call_id="callprobe"),
        ),
        tools=(_TOOL,) if prompter.capabilities.tools == "yes" else (),
    )
    try:
        return prompter.prompt(request).text.rpartition(_USER_MARK)[2].partition(_RESULT_MARK)[0]
    except BadRequest as error:
        if text is None:
            raise FormatUnknown(f"{error.message.rstrip('.')}. So its format cannot be told: name it") from None
        return ""


def _reads(candidate: Format, written: str, opening: str) -> str | None:
    """The content beside the call, where the candidate reads exactly the probe's call out of the turn without a fault.

    The turn is read from where the model writes on: after its opening, and after a thought that the template itself closed.
    """
    begin = written.rfind(opening) + len(opening) if opening and opening in written else 0
    if (sign := candidate.thought_sign) and sign in written[begin:]:
        begin = written.rfind(sign) + len(sign)
    parser = candidate.parser(ParseOptions(tools=(_TOOL,), prompt_tail=written[:begin]))
    deltas = [*parser.feed(written[begin:]), *parser.finish("stop", Usage())]
    names = [delta.name for delta in deltas if isinstance(delta, ToolCallStart)]
    whole = names == [_TOOL.name] and sum(isinstance(delta, ToolCallEnd) for delta in deltas) == 1
    if not whole or any(isinstance(delta, ParseFailure) for delta in deltas):
        return None
    try:
        fits = decode("".join(_arguments(deltas))) == _ARGUMENTS
    except JsonError:
        return None
    return "".join(delta.text for delta in deltas if isinstance(delta, ContentText)) if fits else None


def _arguments(deltas: Sequence[Delta]) -> Iterator[str]:
    return (delta.text for delta in deltas if isinstance(delta, ToolCallArguments))
