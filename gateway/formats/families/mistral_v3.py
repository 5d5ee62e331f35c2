"""Older Mistral models (7B v0.3, Nemo, Small 3.0): a JSON array of calls after `[TOOL_CALLS]`, without thoughts."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker

FORMAT = FormatSpec(
    name="mistral_v3",
    blocks=(Block(opener=Marker("[TOOL_CALLS]", token=True), closer=None, codec=JsonInWrapper(array=True)),),
    call_ids="nine_alnum",
)
