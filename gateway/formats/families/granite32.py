"""Granite 3.2: the calls of Granite 3, and thought and answer each after a sentence that announces it."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

_CALLS = JsonInWrapper(array=True, arguments_keys=("arguments", "parameters"))

FORMAT = FormatSpec(
    name="granite32",
    reasoning=Reasoning(opener=Marker("Here is my thought process:"), closer=Marker("Here is my response:")),
    blocks=(
        Block(opener=Marker("<|tool_call|>", token=True), closer=None, codec=_CALLS),
        Block(opener=Marker("<tool_call>"), closer=None, codec=_CALLS),
    ),
)
