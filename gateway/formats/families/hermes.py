"""Qwen2.5, Qwen3, Hermes 2 and 3 and many fine-tunes: a JSON object a call in `<tool_call>` tags, thoughts in `<think>` tags."""

from gateway.formats.base import CallSyntax
from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="hermes",
    aliases=("qwen", "qwen25", "qwen3", "qwen3_json", "qwen3-thinking", "trinity"),
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
