"""ERNIE 4.5: the calls of `hermes` after a thought that the prompt may open; the answer in `<response>` tags."""

from gateway.formats.base import CallSyntax
from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="ernie45",
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<tool_call>", token=True),
            closer=Marker("</tool_call>", token=True),
            codec=JsonInWrapper(arguments_keys=("arguments", "parameters")),
        ),
    ),
    transparent=(Marker("<response>", token=True), Marker("</response>", token=True)),
    newlines_before_call=1,
    call_syntax=CallSyntax(
        opener="<tool_call>\n",
        closer="\n</tool_call>",
        separator="\n",
        name_key="name",
        arguments_key="arguments",
    ),
)
