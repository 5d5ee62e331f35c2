"""Mistral's `tekken.json`: byte-level BPE by ranks. Special tokens have the first ids, the others follow by rank.

A word's bytes are joined where they make the token of the lowest rank, the leftmost of several: SentencePiece's way, with
ranks for scores. The file may list more tokens than the model has: as many count as its `default_vocab_size` says.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from gateway.errors import ModelFileError, shown
from gateway.prompt.byte_level import byte_level, spelled
from gateway.prompt.pretokenize import PreTokenizer
from gateway.prompt.sentencepiece import MAX_TOKENS, merges


def tekken(value: Mapping[str, Any], names: Mapping[int, str]) -> Backend:
    """`names` are special tokens' texts by id, where other files of the model say them. Raises ModelFileError."""
    config = value.get("config")
    if not isinstance(config, dict):
        raise ModelFileError("tekken.json has no config.")
    specials, size = _count(config, "default_num_special_tokens"), _count(config, "default_vocab_size")
    pattern = config.get("pattern")
    if not isinstance(pattern, str):
        raise ModelFileError("tekken.json: config.pattern is not a text.")
    ranked = _ranked(value.get("vocab"), size - specials)
    named = _named(value, names, specials)
    vocabulary = named | {text: specials + rank for rank, text in enumerate(ranked)}
    if len(vocabulary) != size:
        raise ModelFileError("tekken.json has a token twice.")
    pairs = merges({text: float(-rank) for rank, text in enumerate(ranked)})
    added = [AddedToken(text, special=True, normalized=False) for text in named]
    return byte_level(vocabulary, pairs, PreTokenizer((pattern,), whole_words=True), added)


def _count(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        raise ModelFileError(f"tekken.json: config.{key} is not a number of tokens.")
    return value


def _ranked(entries: object, count: int) -> list[str]:
    """The tokens by rank, spelled in the alphabet of bytes."""
    if not isinstance(entries, list) or not 0 < count <= len(entries):
        raise ModelFileError(f"tekken.json: vocab does not list {count} tokens.")
    found: list[str] = []
    for rank, entry in enumerate(entries[:count]):
        match entry:
            case {"rank": int(at), "token_bytes": str(coded)} if at == rank:
                found.append(spelled(_decoded(coded, rank)))
            case _:
                raise ModelFileError(f"tekken.json: vocab has no token of rank {rank} at its place.")
    return found


def _decoded(coded: str, rank: int) -> bytes:
    try:
        return base64.b64decode(coded, validate=True)
    except (binascii.Error, ValueError):
        raise ModelFileError(f"tekken.json: the token of rank {rank} is not base64.") from None


def _named(value: Mapping[str, Any], names: Mapping[int, str], count: int) -> dict[str, int]:
    """The special tokens; those that no file names get the names that mistral-common gives them."""
    listed = value.get("special_tokens")
    if isinstance(listed, list):
        names = _listed(listed, count)
    if not names:
        raise ModelFileError("tekken.json does not name its special tokens, and no other file of the model does.")
    return {names.get(token_id, f"<SPECIAL_{token_id}>"): token_id for token_id in range(count)}


def _listed(entries: list[object], count: int) -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in entries:
        match entry:
            case {"rank": int(rank), "token_str": str(text)} if rank not in found and 0 <= rank < count:
                found[rank] = text
            case {"rank": int(rank), "token_str": str(text)}:
                why = "has the rank of another" if rank in found else f"is not among the first {count} tokens"
                raise ModelFileError(f"tekken.json: the special token {shown(text)} of rank {rank} {why}.")
            case _:
                raise ModelFileError(f"tekken.json: special_tokens holds {shown(str(entry))}, not a rank and a text.")
    return found
