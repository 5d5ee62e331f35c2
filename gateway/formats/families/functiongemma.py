"""FunctionGemma: Gemma 4's calls with other markers, without thoughts."""

from gateway.formats.codecs.brace_delimited import BraceDelimited
from gateway.formats.spec import Block, FormatSpec, Marker

FORMAT = FormatSpec(
    name="functiongemma",
    blocks=(
        Block(
            opener=Marker("<start_function_call>", token=True),
            closer=Marker("<end_function_call>", token=True),
            codec=BraceDelimited(delimiter="<escape>"),
        ),
    ),
    tokens=("<escape>",),
)
