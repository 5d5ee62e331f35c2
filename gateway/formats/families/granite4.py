"""Granite 4: the calls of `hermes`, which it at times encodes twice, and thoughts in `<think>` tags that the prompt may open."""

from gateway.formats.base import CallSyntax
from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="granite4",
    aliases=("granite_thinking_parser",),
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<tool_call>", token=True),
            closer=Marker("</tool_call>", token=True),
            codec=JsonInWrapper(arguments_keys=("arguments", "parameters")),
        ),
    ),
    newlines_before_call=1,
    call_syntax=CallSyntax(
        opener="<tool_call>\n",
        closer="\n</tool_call>",
        separator="\n",
        name_key="name",
        arguments_key="arguments",
    ),
)
