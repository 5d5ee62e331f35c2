"""Granite 20B function calling: a JSON object a call after `<function_call>`, whose end is the call's end; without thoughts."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker

FORMAT = FormatSpec(
    name="granite_20b_fc",
    aliases=("granite-20b-fc",),
    blocks=(
        Block(
            opener=Marker("<function_call>"),
            closer=None,
            codec=JsonInWrapper(arguments_keys=("arguments", "parameters")),
        ),
    ),
    newlines_before_call=1,
)
