"""LongCat-Flash: a JSON object a call in `<longcat_tool_call>` tags, thoughts in `<longcat_think>` tags."""

from gateway.formats.base import CallSyntax
from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="longcat",
    reasoning=Reasoning(opener=Marker("<longcat_think>", token=True), closer=Marker("</longcat_think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<longcat_tool_call>", token=True),
            closer=Marker("</longcat_tool_call>", token=True),
            codec=JsonInWrapper(arguments_keys=("arguments", "parameters")),
        ),
    ),
    newlines_before_call=1,
    call_syntax=CallSyntax(
        opener="<longcat_tool_call>\n",
        closer="\n</longcat_tool_call>",
        separator="\n",
        name_key="name",
        arguments_key="arguments",
    ),
)
