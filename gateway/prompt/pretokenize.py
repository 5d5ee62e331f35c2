"""How byte-level BPE vocabularies cut text into words before merging: the closed table behind `tokenizer.ggml.pre`.

Invariant: a name is here only if its cuts equal those of llama.cpp, tested against it; an unknown name is refused, since a guess
gives ids that are wrong for some text only.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.errors import ModelFileError, shown

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str, letters: str = r"\p{L}+") -> str:
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}|{digits}|{_TAIL}"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Patterns whose matches become words of their own, applied one after the other; then GPT-2's pattern where `gpt2`.

    `whole_words`: a word that is a token is not merged up to it. `bos`: a file that does not say wants a BOS token.
    """

    patterns: tuple[str, ...] = ()
    gpt2: bool = False
    whole_words: bool = False
    bos: bool = False


_GPT2 = PreTokenizer(gpt2=True)
_SINGLE_DIGITS = PreTokenizer((r"\p{N}",), gpt2=True)
_QWEN2 = PreTokenizer((_words(r"\p{N}"),))
_LLAMA3 = PreTokenizer((_words(r"\p{N}{1,3}"),), whole_words=True, bos=True)

TABLE: Mapping[str, PreTokenizer] = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """The entry of this name. Raises ModelFileError for an unknown one."""
    if name is None:
        raise ModelFileError("The GGUF file does not name its pre-tokenizer (tokenizer.ggml.pre): its ids would be a guess.")
    found = TABLE.get(name)
    if found is None:
        known = ", ".join(sorted(TABLE))
        raise ModelFileError(f"The GGUF file's pre-tokenizer {shown(name)} is not known here, only these: {known}.")
    return found
