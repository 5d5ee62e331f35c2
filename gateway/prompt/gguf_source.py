"""What the metadata of a GGUF file says about speaking to its model."""

from collections.abc import Iterator, Mapping

from gateway.errors import ModelFileError, shown
from gateway.prompt import gguf
from gateway.prompt.model_files import DEFAULT, ModelFiles, bos_text, context_length, stop_ids, with_default
from gateway.prompt.pretokenize import pre_tokenizer
from gateway.prompt.tokenizer import Tokenizer, from_gguf

_SPECIALS: Mapping[str, str] = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding"}
_STOPS = ("eos", "eot", "eom")
_TEMPLATE = "tokenizer.chat_template"


def from_metadata(metadata: gguf.Metadata) -> ModelFiles:
    """Raises ModelFileError."""
    templates, template_conflicts = _templates(metadata)
    tokenizer = from_gguf(metadata)
    ids = {name: _id(metadata, key, tokenizer) for name, key in _SPECIALS.items()}
    stops = stop_ids([_id(metadata, key, tokenizer) for key in _STOPS], tokenizer)
    specials = {f"{name}_token": tokenizer.text_of(token_id) for name, token_id in ids.items() if token_id is not None}
    family = gguf.get(metadata, "general.architecture", str)
    return ModelFiles(
        templates=templates,
        tokenizer=tokenizer,
        specials=specials,
        stop_ids=stops,
        bos=bos_text(_wants_bos(metadata), specials),
        context_tokens=context_length(metadata.get(f"{family}.context_length"), f"{family}.context_length"),
        conflicts=(*template_conflicts, *_conflicts(stops, tokenizer, gguf.get(metadata, f"{family}.vocab_size", int))),
    )


def _templates(metadata: gguf.Metadata) -> tuple[dict[str, str], list[str]]:
    """The one without a name is the default, as for llama.cpp."""
    named = {
        key.removeprefix(_TEMPLATE + "."): gguf.get(metadata, key, str) or ""
        for key in metadata
        if key.startswith(_TEMPLATE + ".")
    }
    own = gguf.get(metadata, _TEMPLATE, str)
    templates = with_default(named if own is None else named | {DEFAULT: own}, f"the GGUF file has no {_TEMPLATE}")
    if named.get(DEFAULT, own) == templates[DEFAULT]:
        return templates, []
    return templates, [f"{_TEMPLATE}.{DEFAULT} is another chat template than {_TEMPLATE}, which is followed."]


def _id(metadata: gguf.Metadata, name: str, tokenizer: Tokenizer) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    token_id = gguf.get(metadata, key, int)
    if token_id is not None and not 0 <= token_id < tokenizer.vocab_size:
        raise ModelFileError(f"{key} is {token_id}, but the vocabulary has {tokenizer.vocab_size} tokens.")
    return token_id


def _wants_bos(metadata: gguf.Metadata) -> bool:
    """What llama.cpp takes a file for that does not say depends on its kind and its pre-tokenizer."""
    declared = gguf.get(metadata, "tokenizer.ggml.add_bos_token", bool)
    if declared is not None:
        return declared
    if gguf.get(metadata, "tokenizer.ggml.model", str) == "llama":
        return True
    return pre_tokenizer(gguf.get(metadata, "tokenizer.ggml.pre", str)).bos


def _conflicts(stops: frozenset[int], tokenizer: Tokenizer, rows: int | None) -> Iterator[str]:
    for token_id in sorted(stops - set(tokenizer.special_ids.values())):
        text = shown(tokenizer.text_of(token_id))
        yield f"The end token {text} is not marked as a special one: where a prompt has its text, that is its letters."
    if rows is not None and rows < tokenizer.vocab_size:
        yield f"The model has {rows} tokens, its vocabulary {tokenizer.vocab_size}: it cannot read the last ones."
