"""How byte-level BPE vocabularies cut text into words before merging: the closed table behind `tokenizer.ggml.pre`.

Invariant: a name is here only if its cuts equal those of llama.cpp, tested against it; an unknown name is refused, since a guess
gives ids that are wrong for some text only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gateway.errors import ModelFileError, shown

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ASCII_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_OPENING = r"[^\r\n\p{L}\p{N}]?"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str, letters: str = r"\p{L}+", others: str = _OTHERS) -> str:
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}|{digits}|{others}|{_SPACES}"


def _cased(end: str, digits: str) -> str:
    """Words by their case. llama.cpp takes every letter that is not ASCII for both an upper and a lower one, and marks for none;
    the models' own rules do not.
    """
    upper, lower = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
    words = rf"{_OPENING}{upper}*{lower}+{end}|{_OPENING}{upper}+{lower}*{end}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


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
_TEKKEN = PreTokenizer((_cased("", r"\p{N}"),), whole_words=True, bos=True)
_GPT4O = PreTokenizer((_cased(f"{_ASCII_CONTRACTIONS}?", r"\p{N}{1,3}"),))
_HAN = (
    r"\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}"
    r"\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}\x{2CEB0}-\x{2EBEF}\x{2F800}-\x{2FA1F}"
)
_KIMI = PreTokenizer((rf"[{_HAN}]+|{_OPENING}[\p{{L}}&&[^{_HAN}]]+{_ASCII_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_OTHERS}|{_SPACES}",))
_BAILING = PreTokenizer(
    (rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_OPENING}\p{{L}}+|\p{{N}}|{_OTHERS}|\s*[\r\n]|\s+(?!\S)|\s+",)
)
_NAMES: Mapping[PreTokenizer, str] = {
    _GPT2: "gpt-2 phi-2 mpt olmo exaone4 granite-docling trillion gigachat mellum a.x-4.0",
    _SINGLE_DIGITS: "smollm starcoder refact command-r exaone codeshell minerva-7b mellum2",
    _QWEN2: "qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez kormo grok-2 solar-open",
    _QWEN35: "qwen35",
    _SEED: "seed-coder",
    _LLAMA3: "llama-bpe llama3 llama-v3 lfm2 falcon3 falcon-h1 pixtral midm-2.0",
    PreTokenizer(_THREE_DIGITS): "glm4 chatglm-bpe dbrx smaug-bpe",
    _DEEPSEEK3: "deepseek-v3 hunyuan-dense joyai-llm",
    _TEKKEN: "tekken",
    _GPT4O: "gpt-4o llama4 kanana2 minimax-m2",
    _KIMI: "kimi-k2",
    _BAILING: "bailingmoe bailingmoe2 llada-moe",
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
