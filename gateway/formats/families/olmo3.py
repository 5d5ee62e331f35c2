"""OLMo 3: Python calls, a line each, in `<function_calls>` tags, and thoughts in `<think>` tags; all of them plain text."""

from gateway.formats.codecs.python_calls import PythonCalls
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="olmo3",
    reasoning=Reasoning(opener=Marker("<think>"), closer=Marker("</think>")),
    blocks=(Block(opener=Marker("<function_calls>"), closer=Marker("</function_calls>"), codec=PythonCalls()),),
    newlines_before_call=1,
)
