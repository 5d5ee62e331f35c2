"""Mistral models with tokenizer v11 and newer (Small 3.1 on, Devstral, Magistral, Ministral 3): `[TOOL_CALLS]name[ARGS]{…}`."""

from gateway.formats.codecs.named_json import NamedJson
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="mistral_v13",
    aliases=("mistral", "ministral3", "magistral", "mistral_v11"),
    reasoning=Reasoning(opener=Marker("[THINK]", token=True), closer=Marker("[/THINK]", token=True)),
    blocks=(
        Block(
            opener=Marker("[TOOL_CALLS]", token=True),
            closer=None,
            codec=NamedJson(name_end="[ARGS]", id_open="[CALL_ID]"),
        ),
    ),
    call_ids="nine_alnum",
    tokens=("[ARGS]", "[CALL_ID]"),
)
