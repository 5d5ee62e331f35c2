"""How byte-level BPE vocabularies cut text into words before merging: the closed table behind `tokenizer.ggml.pre`.

Invariant: a name is here only if its cuts equal those of llama.cpp, tested against it; an unknown name is refused, since a guess
gives ids that are wrong for some text only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gateway.errors import ModelFileError, shown

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str, letters: str = r"\p{L}+", others: str = _OTHERS) -> str:
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}|{digits}|{others}|{_SPACES}"


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
_QWEN35 = PreTokenizer((_words(r"\p{N}", r"[\p{L}\p{M}]+", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),))
_SEED = PreTokenizer((_words(r"\p{N}", others=r" ?[^\s\p{L}\p{N}\r\n]+"),))
_THREE_DIGITS = (_words(r"\p{N}{1,3}"),)
_LLAMA3 = PreTokenizer(_THREE_DIGITS, whole_words=True, bos=True)
_DEEPSEEK3 = PreTokenizer(
    (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        rf"[!-/:-@\[-`{{-~][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    )
)
_NAMES: Mapping[PreTokenizer, str] = {
    _GPT2: "gpt-2 phi-2 mpt olmo exaone4 granite-docling",
    _SINGLE_DIGITS: "smollm starcoder refact command-r exaone",
    _QWEN2: "qwen2 deepseek-r1-qwen stablelm2 hunyuan",
    _QWEN35: "qwen35",
    _SEED: "seed-coder",
    _LLAMA3: "llama-bpe llama3 llama-v3 lfm2",
    PreTokenizer(_THREE_DIGITS): "glm4 chatglm-bpe",
    _DEEPSEEK3: "deepseek-v3",
}
TABLE: Mapping[str, PreTokenizer] = MappingProxyType({name: rules for rules, names in _NAMES.items() for name in names.split()})


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """The entry of this name. Raises ModelFileError for an unknown one."""
    if name is None:
        raise ModelFileError("The GGUF file does not name its pre-tokenizer (tokenizer.ggml.pre): its ids would be a guess.")
    found = TABLE.get(name)
    if found is None:
        known = ", ".join(sorted(TABLE))
        raise ModelFileError(f"The GGUF file's pre-tokenizer {shown(name)} is not known here, only these: {known}.")
    return found
