"""An engine's server-sent events as values, the same way for every kind of engine.

Invariant: bytes that are not UTF-8, and escapes of half a character, become U+FFFD, so that no parser meets them; what is not the
protocol's JSON is EngineBroke.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from engines.base import MAX_LOAD_BYTES
from gateway.errors import EngineBroke, shown
from gateway.request import FinishReason
from gateway.wire.jsonio import Decoder, JsonError, without_lone_surrogates

T = TypeVar("T")


class _Tokens(msgspec.Struct):
    tokens: list[int]


_TOKENS = Decoder(_Tokens)


def mended(data: bytes) -> bytes:
    """The data of an event as UTF-8: itself, nearly always."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            return data.decode(errors="replace").encode()
    return data


def read(decoder: Decoder[T], data: bytes) -> T:
    """The event. Raises EngineBroke."""
    try:
        return decoder.decode(data)
    except JsonError:
        pass
    try:
        return decoder.decode(without_lone_surrogates(data))
    except JsonError as error:
        raise EngineBroke(f"The engine sent an event that is not what its protocol says: {error.message}.") from None


def understood(decoder: Decoder[T], body: bytes) -> T | None:
    """What an answer says that an engine may leave out; None where it cannot be read, or is too long."""
    try:
        return decoder.decode(body) if len(body) <= MAX_LOAD_BYTES else None
    except JsonError:
        return None


def token_ids(body: bytes) -> tuple[int, ...]:
    """The answer to `/tokenize`, in which llama.cpp and vLLM are alike. Raises EngineBroke."""
    return tuple(read(_TOKENS, body).tokens)


def finish(reasons: Mapping[str, FinishReason], word: str) -> FinishReason:
    """What an engine's word for why it stopped means. Raises EngineBroke for an unknown one."""
    reason = reasons.get(word)
    if reason is None:
        raise EngineBroke(f"The engine ended the answer with the reason {shown(word)}.")
    return reason
