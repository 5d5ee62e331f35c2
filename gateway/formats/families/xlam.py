"""xLAM: a JSON array of calls that is the whole answer, bare or fenced, or in `<tool_call>` tags or after `[TOOL_CALLS]`."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

_CALLS = JsonInWrapper(array=True, arguments_keys=("arguments", "parameters"), fence="```")

FORMAT = FormatSpec(
    name="xlam",
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(opener=Marker("<tool_call>", token=True), closer=Marker("</tool_call>", token=True), codec=_CALLS, starter="["),
        Block(opener=Marker("[TOOL_CALLS]", token=True), closer=None, codec=_CALLS, starter="```"),
    ),
    newlines_before_call=1,
)
