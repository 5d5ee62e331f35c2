"""Reads SentencePiece's own file, `tokenizer.model`: a message of pieces, and of the settings they were trained with.

Invariant: any bytes give pieces or `ModelFileError`.
"""

from collections.abc import Mapping

from gateway.errors import ModelFileError, shown
from gateway.prompt.protobuf import Field, fields
from gateway.prompt.sentencepiece import MAX_TOKENS, SPACE, Kind, Pieces, Prefix

# Numbers of fields: of the trainer's settings, of the normaliser's
_MODEL_TYPE, _SPACE_AFTER = 3, 24
_CHARSMAP, _ADDS_PREFIX, _REMOVES_BLANKS, _ESCAPES_BLANKS = 2, 3, 4, 5
_BPE = 2  # a model type


def read_pieces(data: bytes, added: Mapping[int, str], prefix: Prefix | None = None) -> Pieces:
    """Raises ModelFileError.

    `added` are special tokens by id, as other files of the model say: new ones, or other names for the file's. `prefix` is what
    they say of the space before a text; None leaves it to the file.
    """
    found: list[tuple[str, float, int]] = []
    trainer: dict[int, Field] = {}
    normalizer: dict[int, Field] = {}
    for number, value in fields(memoryview(data)):
        if number == 1 and len(found) < MAX_TOKENS:
            found.append(_piece(value))
        elif number in (2, 3):
            (trainer if number == 2 else normalizer).update(_message(value))
    if not found:
        raise ModelFileError("it holds no pieces")
    _refuse_unknown(trainer, normalizer)
    texts, scores, kinds = zip(*_with(found, added), strict=True)
    return Pieces(texts, scores, kinds, prefix or ("always" if normalizer.get(_ADDS_PREFIX, 1) else "never"))


def _refuse_unknown(trainer: Mapping[int, Field], normalizer: Mapping[int, Field]) -> None:
    """Only what was found to give SentencePiece's own ids for every text is read."""
    if trainer.get(_MODEL_TYPE, 1) != _BPE:
        raise ModelFileError("it is not of the type BPE: of equally likely pieces (Unigram) another library may choose others")
    if normalizer.get(_CHARSMAP):
        raise ModelFileError("it replaces characters before it cuts a text, which other libraries do in other ways")
    if normalizer.get(_REMOVES_BLANKS, 1) or not normalizer.get(_ESCAPES_BLANKS, 1) or trainer.get(_SPACE_AFTER, 0):
        raise ModelFileError("it leaves blanks out of a text, or puts them after words")


def _with(found: list[tuple[str, float, int]], added: Mapping[int, str]) -> list[tuple[str, float, int]]:
    pieces = dict(enumerate(found)) | {token_id: (text, 0.0, int(Kind.CONTROL)) for token_id, text in added.items()}
    if pieces.keys() != set(range(len(pieces))):
        raise ModelFileError(f"other files add the id {max(pieces)} to its {len(found)} pieces, but not those between")
    return [pieces[token_id] for token_id in range(len(pieces))]


def _message(value: Field) -> dict[int, Field]:
    if not isinstance(value, memoryview):
        raise ModelFileError("it is not a SentencePiece model")
    return dict(fields(value))


def _piece(value: Field) -> tuple[str, float, int]:
    match _message(value):
        case {1: memoryview() as data, **rest}:
            score, kind = rest.get(2, 0.0), rest.get(3, 1)
        case _:
            raise ModelFileError("it is not a SentencePiece model")
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError:
        raise ModelFileError("it has a piece that is not UTF-8") from None
    if not isinstance(score, float) or kind not in list(Kind) or kind == Kind.UNUSED:
        raise ModelFileError(f"its piece {shown(text)} is of an unknown kind")
    # What users define is found in a text as it is written, before spaces are.
    return text.replace(SPACE, " ") if kind == Kind.USER_DEFINED else text, score, int(kind)
