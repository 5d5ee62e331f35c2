"""Byte-level BPE, as of GPT-2: a text is cut into words, each word into bytes, and bytes are joined by rank."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from tokenizers import AddedToken, Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel
from tokenizers.pre_tokenizers import PreTokenizer as Splitter

from gateway.prompt.pretokenize import PreTokenizer


def _byte_characters() -> dict[str, int]:
    """GPT-2's alphabet: each byte's printable character. Bytes that print stand for themselves, the others follow U+0100."""
    printing = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(0x100 + number): byte for number, byte in enumerate(others)}


_BYTE_OF: Mapping[str, int] = MappingProxyType(_byte_characters())
_TO_LATIN1 = MappingProxyType({ord(character): byte for character, byte in _BYTE_OF.items()})
_FROM_LATIN1 = MappingProxyType({byte: character for character, byte in _BYTE_OF.items()})


def spelled(data: bytes) -> str:
    """Bytes in that alphabet."""
    return data.decode("latin-1").translate(_FROM_LATIN1)


def bytes_spelled(spelling: str) -> bytes:
    """The bytes that a token's spelling stands for; what has other characters too, as an unused token may, is its own text."""
    spells = _BYTE_OF.keys() >= set(spelling)
    return spelling.translate(_TO_LATIN1).encode("latin-1") if spells else spelling.encode()


def byte_level(
    vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], rules: PreTokenizer, added: Iterable[AddedToken]
) -> Backend:
    """`added` are the tokens that are cut out of a text first; they are in the vocabulary too."""
    backend = Backend(models.BPE(vocab=dict(vocabulary), merges=[*merges], ignore_merges=rules.whole_words))
    backend.decoder = ByteLevel()
    backend.pre_tokenizer = pre_tokenizers.Sequence(_splitters(rules, vocabulary))
    backend.add_tokens([*added])
    return backend


def _splitters(rules: PreTokenizer, vocabulary: Mapping[str, int]) -> list[Splitter]:
    splitters: list[Splitter] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns]
    splitters.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rules.gpt2))
    missing = "".join(character for character in _BYTE_OF if character not in vocabulary)
    if missing:
        # A byte without a token is dropped; its neighbours must not merge over the gap, as they do not in llama.cpp.
        splitters.append(pre_tokenizers.Split(Regex("[" + "".join(f"\\x{{{ord(c):X}}}" for c in missing) + "]"), "isolated"))
    return splitters
