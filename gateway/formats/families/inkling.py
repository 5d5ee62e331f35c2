"""Inkling: messages of one kind of block each, all with the same end; a call's name stands before its block too.

What the model says to a tool in free text is text: a call's arguments are an object.
"""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

_MODEL = Marker("<|message_model|>", token=True)
_END = Marker("<|end_message|>", token=True)
_END_OF_TURN = Marker("<|content_model_end_sampling|>", token=True)
_FREE_TEXT = Marker("<|content_invoke_tool_text|>", token=True)
_TOOL_ERROR = Marker("<|content_tool_error|>", token=True)

FORMAT = FormatSpec(
    name="inkling",
    reasoning=Reasoning(
        opener=Marker("<|content_thinking|>", token=True), closer=_END, ended_by=(_MODEL, _END_OF_TURN), repeats=True
    ),
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
        _FREE_TEXT,
        _TOOL_ERROR,
        _END,
        _END_OF_TURN,
    ),
    name_before_call="",
    named=(_FREE_TEXT, _TOOL_ERROR),
)
