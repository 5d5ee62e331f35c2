"""GigaChat 3: one JSON object after `<|function_call|>`, or after a message's header; without thoughts."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker

_CALL = JsonInWrapper(arguments_keys=("arguments", "parameters"))

FORMAT = FormatSpec(
    name="gigachat3",
    blocks=(
        Block(opener=Marker("<|function_call|>", token=True), closer=None, codec=_CALL),
        Block(opener=Marker("function call<|role_sep|>"), closer=None, codec=_CALL),
    ),
    transparent=(Marker("<|message_sep|>", token=True),),
    tokens=("<|role_sep|>",),
    newlines_before_call=1,
)
