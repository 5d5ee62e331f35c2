"""Text to token ids and back, for the vocabularies of every kind of model file.

Invariant: `encode` adds no token of its own, BOS included, and special tokens written in the text become their ids. A detokeniser
gives each byte once, in order, whatever the ids are: a character that several tokens share comes out whole, when its last byte
is there.
"""

import codecs
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, Protocol

from tokenizers import Tokenizer as Backend
from tokenizers import models
from tokenizers.decoders import ByteLevel, DecodeStream

from gateway.errors import ModelFileError, shown
from gateway.prompt.byte_level import bytes_spelled
from gateway.prompt.gguf import Metadata
from gateway.prompt.gguf_vocabulary import gguf_vocabulary
from gateway.prompt.sentencepiece import BYTES, MAX_TOKENS, SPACE, Pieces, bytes_of, sentencepiece, strips_space
from gateway.prompt.tekken import tekken

MAX_ADDED = 32_768  # all that looks for them in a text is made at once; models have a few thousand, of up to 40 characters
MAX_ADDED_CHARS = 128
_BEFORE = "a"  # a letter: vocabularies join it to no marker, newline or symbol
_STEP_CHARS = 1 << 16  # small copies stay in the processor's cache
_VISIBLE = bytes(range(ord("!"), ord("~") + 1))
_BLANK = bytes([*range(ord("!")), 0x7F])  # templates trim it, and some tokens swallow it


class Detokenizer(Protocol):
    """One answer's ids to text."""

    @property
    def whole(self) -> bool:
        """Whether no character is begun and not whole."""

    def add(self, token_id: int) -> str:
        """The text that this id completes; empty while a character is not whole."""

    def finish(self) -> str:
        """What is left: U+FFFD for a character that never became whole."""


@dataclass(frozen=True, slots=True)
class AddedText:
    """A token that is found as text. `swallows`: it takes blanks around it along, or stands between words only. `special`: the
    vocabulary calls it a control token."""

    text: str
    normalized: bool
    swallows: bool
    special: bool = False


class Tokenizer:
    """A model's vocabulary, with the library's rules for it."""

    def __init__(self, backend: Backend) -> None:
        """Raises ModelFileError for a vocabulary beyond any real one: in ids, or in tokens that are cut out of the text."""
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        _refuse_beyond(self._added.values())
        self._special_ids = MappingProxyType({text: token_id for token_id, text in self._added.items()})
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self._size = max([*vocabulary.values(), -1]) + 1
        if self._size > MAX_TOKENS:
            raise ModelFileError(f"The vocabulary's highest id is {self._size - 1}, the limit is {MAX_TOKENS - 1}.")
        self._byte_level = isinstance(backend.decoder, ByteLevel)
        self._strips = strips_space(backend.decoder)
        self._bytes = self._all_bytes(vocabulary) if self._byte_level or self._strips is not None else []
        held = set().union(*(piece for piece in self._bytes if len(piece) == 1)) if self._byte_level else range(256)
        self._held = bytes(sorted(held))
        every_byte = self._byte_level or vocabulary.keys() >= BYTES.keys()
        self._characters = None if every_byte else frozenset(chain(SPACE, *vocabulary))
        self._uncounted = bytes(range(256)).translate(None, self._counted(vocabulary))
        pieces = self._bytes or [spelling.encode() for spelling in vocabulary]
        self._longest = max([1, *(len(piece.translate(None, _BLANK)) for piece in pieces)])

    @property
    def backend(self) -> Backend:
        """The library's own object. Only to be read: calls may come from other threads."""
        return self._backend

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return self._size

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Text to id, of every token that is cut out of the text before anything else."""
        return self._special_ids

    def id_of(self, text: str) -> int | None:
        """The id of the token with exactly this text in the vocabulary's own spelling, if there is one."""
        return self._backend.token_to_id(text)

    @property
    def added(self) -> tuple[AddedText, ...]:
        """The tokens that are cut out of a text before anything else, or, `normalized`, before all but its normalisation."""
        return tuple(
            AddedText(token.content, token.normalized, token.lstrip or token.rstrip or token.single_word, token.special)
            for token in self._backend.get_added_tokens_decoder().values()
        )

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of this text. Releases the interpreter lock while it works."""
        return self.encode_all([text])[0]

    def encode_after(self, text: str) -> tuple[int, ...]:
        """The ids of a text that goes on after other tokens: without what begins a text, and merged with nothing before it."""
        begun = self.encode(_BEFORE)
        ids = self.encode(_BEFORE + text)
        return ids[len(begun) :] if ids[: len(begun)] == begun else self.encode(text)

    def encode_all(self, texts: list[str]) -> list[tuple[int, ...]]:
        """The ids of each text."""
        return [tuple(encoding.ids) for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    def least_tokens(self, texts: Iterable[str]) -> int:
        """No prompt that shows these texts has fewer tokens: the bytes that surely count over the most that one token holds.

        Takes the time of a copy, not of a tokenisation. 0 where the vocabulary's rules allow no such bound.
        """
        pieces = (text[begin : begin + _STEP_CHARS] for text in texts for begin in range(0, len(text), _STEP_CHARS))
        counted = sum(len(piece.encode().translate(None, self._uncounted)) for piece in pieces)
        return -(-counted // self._longest)

    def adds_bos(self, bos_id: int) -> bool:
        """Whether the vocabulary's own rules put this token before a text."""
        (encoding,) = self._backend.encode_batch_fast(["a"], add_special_tokens=True)
        return bool(encoding.ids) and encoding.ids[0] == bos_id

    def lost(self, text: str) -> bytes:
        """The bytes of this text that no token of the vocabulary holds: the model cannot see them."""
        if self._characters is None:
            return text.encode().translate(None, self._held)
        lost = {character for character in set(text) if not self._shows(character)}
        return "".join(character for character in text if character in lost).encode() if lost else b""

    def text_of(self, token_id: int) -> str:
        """A token's text; U+FFFD for what is part of a character; empty for an id that the vocabulary lacks."""
        if self._bytes:
            return self.data_of(token_id).decode("utf-8", "replace")
        if not 0 <= token_id < self._size:
            return ""
        return self._added.get(token_id) or self._backend.decode([token_id], skip_special_tokens=False)

    def data_of(self, token_id: int) -> bytes:
        """A token's bytes, of which a character may need several tokens'; empty for an id that the vocabulary lacks."""
        if not 0 <= token_id < self._size:
            return b""
        if self._bytes:
            return self._bytes[token_id]
        return BYTES.get(self._backend.id_to_token(token_id) or "") or self.text_of(token_id).encode()

    def detokenizer(self) -> Detokenizer:
        """A fresh one, for one answer."""
        return _ByteTable(self._bytes, strips=self._strips is True) if self._bytes else _Stream(self._backend)

    def _counted(self, vocabulary: Mapping[str, int]) -> bytes:
        """The bytes that a text cannot hold without a token that holds them.

        Byte-level vocabularies keep every byte they have. Normalisers may shorten what is not ASCII, added tokens may swallow
        blanks of any script, unknown characters may share one token: there only visible ASCII counts that is given back.
        """
        backend = self._backend
        if not isinstance(backend.model, models.BPE | models.Unigram):
            return b""
        swallowing = any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values())
        if self._byte_level and backend.normalizer is None and not swallowing:
            return self._held.translate(None, _BLANK)
        return bytes(byte for byte in _VISIBLE if chr(byte) in vocabulary and self._given_back(chr(byte)))

    def _shows(self, character: str) -> bool:
        """For vocabularies that may lack characters: whether a token has it. Blanks are left out or spelled otherwise by rule."""
        normalizer = self._backend.normalizer
        spelling = normalizer.normalize_str(character) if normalizer is not None else character
        return character.isspace() or self._characters is None or self._characters.issuperset(spelling)

    def _given_back(self, text: str) -> bool:
        return self._backend.decode(list(self.encode(text)), skip_special_tokens=False) == text

    def _all_bytes(self, vocabulary: Mapping[str, int]) -> list[bytes]:
        of_piece = bytes_spelled if self._byte_level else bytes_of
        found = [b""] * self._size
        for spelling, token_id in vocabulary.items():
            found[token_id] = of_piece(spelling)
        for token_id, text in self._added.items():
            found[token_id] = text.encode()
        return found


def _refuse_beyond(added: Collection[str]) -> None:
    if len(added) > MAX_ADDED:
        raise ModelFileError(f"The vocabulary has {len(added)} special and added tokens, the limit is {MAX_ADDED}.")
    longest = max(added, key=len, default="")
    if len(longest) > MAX_ADDED_CHARS:
        raise ModelFileError(
            f"The special or added token {shown(longest)} has {len(longest)} characters, the limit is {MAX_ADDED_CHARS}."
        )


class _ByteTable:
    """For vocabularies each token of which is its bytes, whatever its neighbours are.

    With `strips` a space at the start is left out: it stands for the beginning.
    """

    def __init__(self, pieces: Sequence[bytes], *, strips: bool) -> None:
        self._pieces = pieces
        self._strips = strips
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def whole(self) -> bool:
        return not self._decoder.getstate()[0]

    def add(self, token_id: int) -> str:
        piece = self._pieces[token_id] if 0 <= token_id < len(self._pieces) else b""
        text = self._decoder.decode(piece)
        if self._strips and text:
            self._strips = False
            return text.removeprefix(" ")
        return text

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _Stream:
    """For other vocabularies, the text of whose tokens may depend on their neighbours."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._stream = DecodeStream(skip_special_tokens=False)
        self._ids: list[int] = []

    @property
    def whole(self) -> bool:
        return not self._ids

    def add(self, token_id: int) -> str:
        text = self._stream.step(self._backend, token_id) or ""
        self._ids = [] if text else [*self._ids, token_id]
        return text

    def finish(self) -> str:
        held, self._ids = self._ids, []
        return self._backend.decode(held, skip_special_tokens=False) if held else ""


def from_json(data: bytes) -> Tokenizer:
    """From the bytes of a `tokenizer.json`. Raises ModelFileError."""
    return _made("tokenizer.json", lambda: Backend.from_buffer(data))


def from_tekken(value: Mapping[str, Any], names: Mapping[int, str]) -> Tokenizer:
    """From what a `tekken.json` holds; `names` are special tokens by id, as other files say. Raises ModelFileError."""
    return _made("tekken.json", lambda: tekken(value, names))


def from_pieces(pieces: Pieces) -> Tokenizer:
    """From a SentencePiece model. Raises ModelFileError."""
    return _made("tokenizer.model", lambda: sentencepiece(pieces))


def from_gguf(metadata: Metadata) -> Tokenizer:
    """From a GGUF file's arrays. Raises ModelFileError."""
    return _made("The GGUF file's tokenizer", lambda: gguf_vocabulary(metadata))


def _made(what: str, make: Callable[[], Backend]) -> Tokenizer:
    try:
        backend = make()
    except ModelFileError:
        raise
    except Exception as error:  # the library raises bare Exception for every fault of the file
        raise ModelFileError(f"{what} cannot be read: {error}") from None
    return Tokenizer(backend)
