"""Functionary v3.2 and v3: the text and each call after `>>>` and to whom, `all` or a tool's name; the prompt may hold the first
`>>>`."""

from gateway.formats.codecs.named_json import NamedJson
from gateway.formats.spec import Block, FormatSpec, Marker

FORMAT = FormatSpec(
    name="functionary_v32",
    blocks=(Block(opener=Marker(">>>"), closer=None, codec=NamedJson(name_end="\n", by_shape=True), told=True),),
    transparent=(Marker(">>>all\n"),),
    prompt_begins=">>>",
)
