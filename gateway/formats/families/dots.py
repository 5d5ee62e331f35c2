"""dots.llm: one tag a parameter, or a JSON object, in `<dots_function_call>` tags; thoughts in `<think>` tags."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="dots",
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<dots_function_call>", token=True),
            closer=Marker("</dots_function_call>", token=True),
            codec=Tagged(
                call_open="<invoke name=",
                call_close="</invoke>",
                key_open="<parameter name=",
                trim=False,
                json=JsonInWrapper(arguments_keys=("arguments", "parameters")),
            ),
        ),
    ),
    newlines_before_call=1,
)
