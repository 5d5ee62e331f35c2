"""LFM2 and LFM2.5: a list of Python calls, or of JSON objects, between `<|tool_call_start|>` and `<|tool_call_end|>`."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.codecs.python_calls import PythonCalls
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="lfm2",
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<|tool_call_start|>", token=True),
            closer=Marker("<|tool_call_end|>", token=True),
            codec=PythonCalls(json=JsonInWrapper(array=True, arguments_keys=("arguments", "parameters"))),
        ),
    ),
    newlines_before_call=1,
)
