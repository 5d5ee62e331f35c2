"""K2 Horizon: a pair of tags for each key, its type if the prompt asks for it, and each value, or a JSON object a call; a pair of
tags for thoughts of each depth."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="k2_horizon",
    reasoning=Reasoning(
        opener=Marker("<ifm|think>", token=True),
        closer=Marker("</ifm|think>", token=True),
        others=(
            (Marker("<ifm|think_fast>", token=True), Marker("</ifm|think_fast>", token=True)),
            (Marker("<ifm|think_faster>", token=True), Marker("</ifm|think_faster>", token=True)),
        ),
    ),
    blocks=(
        Block(
            opener=Marker("<ifm|tool_calls>", token=True),
            closer=Marker("</ifm|tool_calls>", token=True),
            codec=Tagged(
                call_open="<ifm|tool_call>",
                name_end="",
                call_close="</ifm|tool_call>",
                key_open="<ifm|arg_key>",
                key_end="</ifm|arg_key>",
                flag_open="<ifm|arg_type>",
                flag_end="</ifm|arg_type>",
                text_flag="string",
                json_flags=("integer", "number", "boolean", "object", "array", "null"),
                value_open="<ifm|arg_value>",
                value_close="</ifm|arg_value>",
                trim=False,
                json=JsonInWrapper(),
            ),
        ),
    ),
    newlines_before_call=1,
    tokens=(
        "<ifm|tool_call>",
        "</ifm|tool_call>",
        "<ifm|arg_key>",
        "</ifm|arg_key>",
        "<ifm|arg_type>",
        "</ifm|arg_type>",
        "<ifm|arg_value>",
        "</ifm|arg_value>",
    ),
)
