"""Inkling: messages of one kind of block each, all with the same end; a call's name stands before its block too."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

_MODEL = Marker("<|message_model|>", token=True)
_END = Marker("<|end_message|>", token=True)

FORMAT = FormatSpec(
    name="inkling",
    reasoning=Reasoning(opener=Marker("<|content_thinking|>", token=True), closer=_END, ended_by=(_MODEL,), repeats=True),
    blocks=(
        Block(
            opener=Marker("<|content_invoke_tool_json|>", token=True),
            closer=_END,
            codec=JsonInWrapper(arguments_keys=("args", "arguments")),
        ),
    ),
    transparent=(
        _MODEL,
        Marker("<|content_text|>", token=True),
        _END,
        Marker("<|content_model_end_sampling|>", token=True),
    ),
    names_before_call=True,
)
