"""Magistral 2506 (tokenizer v11): the calls of `mistral_v13`, with thoughts in `<think>` tags that are text to its tokenizer."""

from gateway.formats.codecs.named_json import NamedJson
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="magistral_v11",
    reasoning=Reasoning(opener=Marker("<think>"), closer=Marker("</think>")),
    blocks=(
        Block(opener=Marker("[TOOL_CALLS]", token=True), closer=None, codec=NamedJson(name_end="[ARGS]", id_open="[CALL_ID]")),
    ),
    call_ids="nine_alnum",
    tokens=("[ARGS]", "[CALL_ID]"),
)
