"""SentencePiece vocabularies: pieces with scores, of a GGUF file or of a `tokenizer.model`, made into a tokenizer.

SentencePiece's BPE joins the two neighbours that make the piece of the highest score, the leftmost of them where several do.
The `tokenizers` library joins by ranks of pairs. `merges` turns one into the other: each way to make a piece of two others,
ranked by that piece's score. The ids are the same unless pairs of one score overlap, so that only their places tell which is
joined: what has no order then is refused.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, groupby, pairwise
from types import MappingProxyType
from typing import Literal

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from gateway.errors import ModelFileError, shown

SPACE = "▁"
MAX_TOKENS = 4_000_000  # of any vocabulary; the largest of real ones have some 262,000
MAX_PIECE_CHARS = 256  # the longest of real vocabularies have less than 100
_MAX_RUN = 64
BYTES: Mapping[str, bytes] = MappingProxyType({f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)})
Prefix = Literal["always", "first", "never"]


class Kind(IntEnum):
    """What a piece is, by the numbers of SentencePiece, which are also those of GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


CUT_OUT = frozenset({Kind.UNKNOWN, Kind.CONTROL, Kind.USER_DEFINED})


@dataclass(frozen=True, slots=True)
class Pieces:
    """A vocabulary by ids.

    `prefix`: whether a space is put before a text: before each that follows a special token, before the
    first only, or never. `joined`: the kinds of pieces that others may be joined to.
    """

    texts: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]
    prefix: Prefix
    joined: frozenset[int] = frozenset({Kind.NORMAL})


def sentencepiece(pieces: Pieces) -> Backend:
    """Raises ModelFileError where the library could not give the very ids."""
    vocabulary = {text: token_id for token_id, text in enumerate(pieces.texts)}
    if len(vocabulary) != len(pieces.texts):
        raise ModelFileError("The vocabulary has a token twice.")
    backend = Backend(_bpe(pieces, vocabulary))
    escape = normalizers.Replace(" ", SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), escape]) if pieces.prefix == "always" else escape
    if pieces.prefix == "first":
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = _decoder(strips=pieces.prefix != "never")
    backend.add_tokens(
        [
            AddedToken(text, special=kind != Kind.USER_DEFINED, normalized=False)
            for text, kind in zip(pieces.texts, pieces.kinds, strict=True)
            if kind in CUT_OUT and text
        ]
    )
    return backend


def strips_space(decoder: object) -> bool | None:
    """Whether a decoder takes the space away that was put before a text; None where it is not SentencePiece's."""
    if not isinstance(decoder, decoders.Decoder):
        return None
    state = decoder.__getstate__()
    return next((strips for strips in (True, False) if _decoder(strips=strips).__getstate__() == state), None)


def bytes_of(piece: str) -> bytes:
    """What a piece stands for in a text."""
    return BYTES.get(piece) or piece.replace(SPACE, " ").encode()


def _decoder(*, strips: bool) -> decoders.Decoder:
    strip = [decoders.Strip(" ", 1, 0)] if strips else []
    return decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])


def _bpe(pieces: Pieces, vocabulary: dict[str, int]) -> models.BPE:
    known = list(zip(pieces.texts, pieces.scores, pieces.kinds, strict=True))
    # What is cut out of a text is never found in the rest of it, unless by a space that the rest spells otherwise.
    scores = {text: score for text, score, kind in known if kind in pieces.joined and (kind not in CUT_OUT or SPACE in text)}
    fallback = Kind.BYTE in pieces.kinds
    if fallback and any(text not in vocabulary for text in BYTES):
        raise ModelFileError("The vocabulary has tokens for some bytes only: it could not hold every text.")
    unknown = next((text for text, _, kind in known if kind == Kind.UNKNOWN), None)
    return models.BPE(
        vocab=vocabulary,
        merges=merges(scores),
        unk_token=None if fallback else unknown,
        fuse_unk=True,
        byte_fallback=fallback,
    )


def merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The pairs in the order in which they are joined. Raises ModelFileError where only their places in the text could tell."""
    ranked = sorted((text for text in scores if len(text) > 1), key=lambda text: -scores[text])
    if (longest := max(map(len, ranked), default=0)) > MAX_PIECE_CHARS:
        raise ModelFileError(f"A piece has {longest} characters, which is longer than {MAX_PIECE_CHARS}.")
    characters = set(chain.from_iterable(ranked)) - scores.keys()
    if whole := next((text for text in ranked if _needs_unknown(text, scores, characters)), None):
        raise ModelFileError(f"The piece {shown(whole)} is made of a character that is no piece itself.")
    splits, runs = _Splits(scores), _runs(ranked)
    pairs: list[tuple[str, str]] = []
    for _, group in groupby(ranked, key=scores.__getitem__):
        tied = list(group)
        pairs += splits.of(tied[0]) if len(tied) == 1 else _tied(tied, splits, runs.get(tied[0][0], set()))
    return pairs


def _needs_unknown(text: str, known: Collection[str], unknown: Collection[str]) -> bool:
    """Whether a way to make this piece starts from a character that only bytes could stand for."""
    first, last = text[0], text[-1]
    return (first in unknown and (text[1:] in known or text[1:] in unknown)) or (last in unknown and text[:-1] in known)


def _runs(texts: Iterable[str]) -> Mapping[str, set[str]]:
    """The pieces that repeat one character, by that character."""
    found: dict[str, set[str]] = {}
    for text in texts:
        if text == text[0] * len(text):
            found.setdefault(text[0], set()).add(text)
    return found


def _tied(texts: list[str], splits: "_Splits", runs: set[str]) -> list[tuple[str, str]]:
    """The pairs of pieces of the same score, of which the leftmost is joined first wherever it is. `runs` are all pieces that
    repeat the first one's first character."""
    unit = texts[0][0]
    if set(texts) == runs:
        return [(unit * left, unit * right) for left, right in _run_pairs({len(text) for text in texts})]
    made = [(text, pair) for text in texts for pair in splits.of(text)]
    begun: dict[str, set[str]] = {}
    for text, (left, _) in made:
        begun.setdefault(left, set()).add(text)
    for text, (_, right) in made:
        if others := begun.get(right, set()) - {text}:
            raise ModelFileError(
                f"The pieces {shown(text)} and {shown(min(others))} have the same score: where they overlap, only their places "
                "tell which is made."
            )
    return [pair for _, pair in made]


def _run_pairs(lengths: set[int]) -> list[tuple[int, int]]:
    """The same for pieces that repeat one character, as blanks: their pairs by lengths. Raises ModelFileError.

    In a run of it pieces grow from the left: who has grown goes on growing. That this is right is tried on runs of every length.
    """
    pairs = [(left, total - left) for total in lengths for left in range(1, total) if {left, total - left} <= lengths | {1}]
    pairs.sort(key=lambda pair: (-pair[0], pair[1]))
    ranks = {pair: rank for rank, pair in enumerate(pairs)}
    tried = range(2, 4 * max(lengths))
    if max(lengths) > _MAX_RUN or any(_joined(each, ranks) != _joined(each, dict.fromkeys(pairs, 0)) for each in tried):
        raise ModelFileError("Pieces that repeat one character have the same score, and no order that is right for every run.")
    return pairs


def _joined(length: int, ranks: Mapping[tuple[int, int], int]) -> list[int]:
    """A run of single characters after joining: always the pair of the lowest rank, the leftmost of several."""
    run = [1] * length
    while True:
        found = [(ranks[pair], at) for at, pair in enumerate(pairwise(run)) if pair in ranks]
        if not found:
            return run
        at = min(found)[1]
        run[at : at + 2] = [run[at] + run[at + 1]]


class _Splits:
    """The ways to make a piece of two others. Only where it begins with another is a piece cut in two: long ones cost little."""

    def __init__(self, pieces: Collection[str]) -> None:
        self._pieces = pieces
        self._begins = _longest_begins(pieces)

    def of(self, text: str) -> list[tuple[str, str]]:
        """Of two ways that can overlap, the one that is then the left comes first."""
        pairs: list[tuple[str, str]] = []
        left = self._begins.get(text)
        while left is not None:
            if (right := text[len(left) :]) in self._pieces:
                pairs.append((left, right))
            left = self._begins.get(left)
        pairs.reverse()
        return sorted(pairs, key=_is_right) if len(pairs) > 1 else pairs


def _longest_begins(texts: Iterable[str]) -> Mapping[str, str]:
    """The longest other text that each begins with, for those that do."""
    found: dict[str, str] = {}
    begun: list[str] = []
    for text in sorted(filter(None, texts)):
        while begun and not text.startswith(begun[-1]):
            begun.pop()
        if begun:
            found[text] = begun[-1]
        begun.append(text)
    return found


def _is_right(pair: tuple[str, str]) -> bool:
    """Whether it overlaps with another way only as the right one: as `a` `ba` does in `ab` `a` `ba`, where both make `aba`.

    Equal neighbours (`▁▁` `▁` `▁▁`) are joined from the left, so that a run of them has its longer pieces there.
    """
    left, right = pair
    text = left + right
    return text.endswith(left) and (not text.startswith(right) or len(left) < len(right))
