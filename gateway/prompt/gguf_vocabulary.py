"""The vocabulary of a GGUF file, made into a tokenizer whose ids are those of llama.cpp with the same file."""

from collections.abc import Iterable, Mapping, Sequence

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from gateway.errors import ModelFileError, shown
from gateway.prompt.byte_level import byte_level
from gateway.prompt.gguf import Metadata, get, get_list
from gateway.prompt.pretokenize import pre_tokenizer
from gateway.prompt.sentencepiece import CUT_OUT, Kind, Pieces, sentencepiece

_STRIPPED = ("phi-3", "phi3")  # llama.cpp knows by these names that a model's special tokens swallow blanks


def gguf_vocabulary(metadata: Metadata) -> Backend:
    """Raises ModelFileError with the reason."""
    kind = get(metadata, "tokenizer.ggml.model", str)
    if kind is None:
        raise ModelFileError("The GGUF file holds no tokenizer (tokenizer.ggml.model is missing).")
    if kind not in ("gpt2", "llama"):
        raise ModelFileError(
            f"GGUF tokenizers of the kind {shown(kind)} cannot be read, only byte-level BPE ('gpt2') and SentencePiece ('llama')."
        )
    name = get(metadata, "general.name", str) or ""
    if any(each in name.lower() for each in _STRIPPED):
        raise ModelFileError(f"llama.cpp drops blanks after special tokens in models of the name {shown(name)} only.")
    return _byte_level(metadata) if kind == "gpt2" else _sentencepiece(metadata)


def _sentencepiece(metadata: Metadata) -> Backend:
    tokens = _required(metadata, "tokenizer.ggml.tokens")
    scores = get_list(metadata, "tokenizer.ggml.scores", float)
    if scores is None or len(scores) != len(tokens):
        raise ModelFileError("The GGUF file's tokenizer.ggml.scores does not have one entry a token.")
    prefixed = get(metadata, "tokenizer.ggml.add_space_prefix", bool)
    kinds = _token_types(tokens, metadata)
    return sentencepiece(Pieces(tokens, scores, kinds, "never" if prefixed is False else "always", joined=frozenset(kinds)))


def _byte_level(metadata: Metadata) -> Backend:
    rules = pre_tokenizer(get(metadata, "tokenizer.ggml.pre", str))
    tokens = _required(metadata, "tokenizer.ggml.tokens")
    vocabulary = {text: token_id for token_id, text in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelFileError("The GGUF vocabulary has a token twice (tokenizer.ggml.tokens).")
    merges = _merges(vocabulary, _required(metadata, "tokenizer.ggml.merges"))
    return byte_level(vocabulary, merges, rules, _added_tokens(tokens, metadata))


def _required(metadata: Metadata, key: str) -> list[str]:
    values = get_list(metadata, key, str)
    if not values:
        raise ModelFileError(f"The GGUF file holds no tokenizer: {key} is missing or empty.")
    return values


def _merges(vocabulary: Mapping[str, int], lines: Iterable[str]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(lines):
        left, space, right = line.partition(" ")
        if not (left and space and right) or left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise ModelFileError(f"The GGUF file's merge number {number}, {shown(line)}, does not fit its vocabulary.")
        merges.append((left, right))
    return merges


def _added_tokens(tokens: Sequence[str], metadata: Metadata) -> list[AddedToken]:
    return [
        AddedToken(text, special=kind != Kind.USER_DEFINED, normalized=False)
        for text, kind in zip(tokens, _token_types(tokens, metadata), strict=True)
        if kind in CUT_OUT and text
    ]


def _token_types(tokens: Sequence[str], metadata: Metadata) -> list[int]:
    types = get_list(metadata, "tokenizer.ggml.token_type", int)
    if types is None or len(types) != len(tokens):
        raise ModelFileError("The GGUF file's tokenizer.ggml.token_type does not have one entry a token.")
    return types
