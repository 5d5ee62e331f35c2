"""Functionary v3.1, and Llama 3.1 where the prompt asks for it: `<function=name>{…}</function>`; without thoughts."""

from gateway.formats.codecs.named_json import NamedJson
from gateway.formats.spec import Block, FormatSpec, Marker

FORMAT = FormatSpec(
    name="functionary_v31",
    blocks=(
        Block(
            opener=Marker("<function="),
            closer=Marker("</function>"),
            codec=NamedJson(name_end=">"),
        ),
    ),
    newlines_before_call=1,
)
