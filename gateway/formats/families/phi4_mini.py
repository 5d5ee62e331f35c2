"""Phi-4-mini: a JSON array of calls after `functools`, or between `<|tool_call|>` tags; without thoughts."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker

_CALLS = JsonInWrapper(array=True, arguments_keys=("arguments", "parameters"))

FORMAT = FormatSpec(
    name="phi4_mini",
    aliases=("phi4_mini_json",),
    blocks=(
        Block(opener=Marker("functools["), closer=None, codec=_CALLS),
        Block(opener=Marker("<|tool_call|>", token=True), closer=Marker("<|/tool_call|>", token=True), codec=_CALLS),
    ),
)
