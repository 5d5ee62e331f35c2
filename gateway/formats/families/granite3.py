"""Granite 3.0 to 3.3: a JSON array of calls after `<|tool_call|>` or `<tool_call>`; thoughts and answers in tags."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

_CALLS = JsonInWrapper(array=True, arguments_keys=("arguments", "parameters"))

FORMAT = FormatSpec(
    name="granite3",
    aliases=("granite",),
    reasoning=Reasoning(opener=Marker("<think>"), closer=Marker("</think>")),
    blocks=(
        Block(opener=Marker("<|tool_call|>", token=True), closer=None, codec=_CALLS),
        Block(opener=Marker("<tool_call>"), closer=None, codec=_CALLS),
    ),
    transparent=(Marker("<response>"), Marker("</response>")),
)
