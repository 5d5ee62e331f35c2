"""How the two kinds of engine stream one answer: the data of their events, and those that are wrong on purpose."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from faults.saying import ENDS, Saying
from support.vocabulary import small_tokenizer

Kind = Literal["llamacpp", "vllm"]
Role = Literal["progress", "token", "end", "usage", "done"]

CONTEXT_TOKENS = 8192
DONE = b"[DONE]"
PLACE = "10.11.12.13:5555"  # what an engine says of itself and no client may see
_DEPTH = 100_000
_TEXT = re.compile(rb'("(?:content|text)": ")')


@dataclass(frozen=True, slots=True)
class Piece:
    """The data of one event, and the tokens that it counts."""

    role: Role
    data: bytes
    ids: tuple[int, ...] = ()


class Speech(Protocol):
    """One answer of one kind of engine."""

    def pieces(self, *, finish: bool = True) -> Iterator[Piece]:
        """The events. Without `finish` none says why the answer ended."""

    def odd(self, text: bytes, sent: int, number: bytes = b"0") -> bytes:
        """An event without tokens that has this JSON for its text, and this for a number, after `sent` tokens."""

    def empty(self, sent: int) -> bytes:
        """An event that holds nothing, after `sent` tokens."""

    def error(self, code: int, key: str) -> list[bytes]:
        """What is said of a failure after status 200."""

    def refusal(self, code: int, key: str) -> object:
        """The body of an error status."""

    def too_long(self) -> object:
        """The body for a prompt that does not fit."""


def speech(kind: Kind, body: Mapping[str, Any], cached: int = 0, burst: int = 1) -> Speech:
    """The answer to a request. `cached` tokens of its prompt need no work; vLLM sends up to `burst` tokens in an event."""
    return LlamaSpeech(body, cached) if kind == "llamacpp" else VllmSpeech(body, cached, burst)


class LlamaSpeech:
    """llama.cpp's `/completion`: the ids of all but the last token of a character are lost."""

    def __init__(self, body: Mapping[str, Any], cached: int) -> None:
        self._prompt: Sequence[int] = body["prompt"]
        self._limit = body.get("n_predict", -1)
        self._visible = body.get("preserved_tokens") or ()
        self._progress = bool(body.get("return_progress"))
        self._endless = bool(body.get("ignore_eos"))
        self._cached = cached

    def pieces(self, *, finish: bool = True) -> Iterator[Piece]:
        if self._progress:
            total = len(self._prompt)
            progress = {"total": total, "cache": self._cached, "processed": total, "time_ms": 1}
            yield Piece("progress", _json({**self._step("", [], 0), "prompt_progress": progress}))
        tokenizer, held, predicted, why = small_tokenizer(), list[int](), 0, "limit"
        saying = Saying(self._prompt, at_least=1 << 30 if self._endless else 0)
        while predicted != self._limit:
            token = saying.next()
            predicted += 1
            held.append(token)
            if token == ENDS:
                text = tokenizer.text_of(token)
                yield Piece("token", _json(self._step(text if text in self._visible else "", [token], predicted)), tuple(held))
                why = "eos"
                break
            if (said := _whole(held)) is not None:
                yield Piece("token", _json(self._step(said, [token], predicted)), tuple(held))
                held.clear()
        if finish:
            end = {**self._step("", [], predicted), "stop": True, "stop_type": why, "stopping_word": ""}
            timings = {"cache_n": self._cached, "prompt_n": len(self._prompt) - self._cached, "predicted_n": predicted}
            yield Piece("end", _json({**end, "timings": timings}))

    def odd(self, text: bytes, sent: int, number: bytes = b"0") -> bytes:
        return b'{"index":%s,"content":%s,"tokens":[],"stop":false,"tokens_predicted":%d}' % (number, text, sent)

    def empty(self, sent: int) -> bytes:
        return self.odd(b'""', sent)

    def error(self, code: int, key: str) -> list[bytes]:
        return [_json(self.refusal(code, key))]

    def refusal(self, code: int, key: str) -> object:
        return {"error": {"code": code, "message": _words(code, key), "type": "server_error"}}

    def too_long(self) -> object:
        said = {"code": 400, "message": "the request exceeds the available context size", "type": "exceed_context_size_error"}
        return {"error": {**said, "n_prompt_tokens": len(self._prompt), "n_ctx": CONTEXT_TOKENS}}

    def _step(self, text: str, tokens: list[int], predicted: int) -> dict[str, object]:
        said: dict[str, object] = {"index": 0, "content": text, "tokens": tokens, "stop": False, "id_slot": 0}
        return {**said, "tokens_predicted": predicted, "tokens_evaluated": len(self._prompt)}


class VllmSpeech:
    """vLLM's `/v1/completions` with `return_token_ids`: every id, and no text for a part of a character."""

    def __init__(self, body: Mapping[str, Any], cached: int, burst: int) -> None:
        self._prompt: Sequence[int] = body["prompt"]
        self._burst = burst
        self._limit: int = body.get("max_tokens", 16)
        self._at_least: int = body.get("min_tokens", 0)
        self._model = body.get("model", "m")
        self._cached = cached

    def pieces(self, *, finish: bool = True) -> Iterator[Piece]:
        saying = Saying(self._prompt, at_least=self._at_least)
        held, text, burst = list[int](), "", list[int]()  # of a character; of an event
        for made in range(1, self._limit + 1):
            burst.append(token := saying.next())
            if token != ENDS:
                held.append(token)
                if (said := _whole(held)) is not None:
                    text += said
                    held.clear()
            why = "stop" if token == ENDS else "length" if made == self._limit else None
            if why is not None or len(burst) == self._burst:
                event = self._event(text, burst, why if finish else None, first=made == len(burst))
                yield Piece("token", _json(event), tuple(burst))
                text = ""
                burst = []
            if why is not None:
                break
        counts = {"prompt_tokens": len(self._prompt), "completion_tokens": made, "total_tokens": len(self._prompt) + made}
        usage = {**counts, "prompt_tokens_details": {"cached_tokens": self._cached}}
        yield Piece("usage", _json({**self._stamp(), "choices": [], "usage": usage}))
        yield Piece("done", DONE)

    def odd(self, text: bytes, sent: int, number: bytes = b"0") -> bytes:
        return b'{"choices":[{"index":%s,"text":%s,"logprobs":null,"finish_reason":null,"token_ids":[]}]}' % (number, text)

    def empty(self, sent: int) -> bytes:
        return _json({**self._stamp(), "choices": []})

    def error(self, code: int, key: str) -> list[bytes]:
        return [_json(self.refusal(code, key)), DONE]

    def refusal(self, code: int, key: str) -> object:
        kind = "BadRequestError" if code < 500 else "InternalServerError"
        return {"error": {"message": _words(code, key), "type": kind, "param": None, "code": code}}

    def too_long(self) -> object:
        message = (
            f"This model's maximum context length is {CONTEXT_TOKENS} tokens. However, you requested 16 output tokens and your "
            f"prompt contains {len(self._prompt)} tokens."
        )
        return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}

    def _stamp(self) -> dict[str, object]:
        return {"id": "cmpl-fault", "object": "text_completion", "created": 1, "model": self._model}

    def _event(self, text: str, tokens: list[int], why: str | None, *, first: bool) -> dict[str, object]:
        choice: dict[str, object] = {"index": 0, "text": text, "logprobs": None, "finish_reason": why, "stop_reason": None}
        choice |= {"token_ids": tokens, "prompt_token_ids": list(self._prompt) if first else None}
        return {**self._stamp(), "choices": [choice]}


def as_one(kind: Kind, said: Speech) -> dict[str, Any]:
    """The answer as it is without a stream."""
    pieces = list(said.pieces())
    events = [json.loads(piece.data) for piece in pieces if piece.role == "token"]
    ids = [token for piece in pieces for token in piece.ids]
    if kind == "llamacpp":
        (end,) = [json.loads(piece.data) for piece in pieces if piece.role == "end"]
        return {**end, "content": "".join(event["content"] for event in events), "tokens": ids}
    (usage,) = [json.loads(piece.data)["usage"] for piece in pieces if piece.role == "usage"]
    choices = [event["choices"][0] for event in events]
    text = "".join(choice["text"] for choice in choices)
    return {**events[-1], "choices": [{**choices[-1], "text": text, "token_ids": ids}], "usage": usage}


def odd_event(mode: str, said: Speech, sent: int, mb: float) -> bytes:
    """The data of the event that a fault puts into the stream."""
    plain = said.odd(b'"odd"', sent)
    events = {
        "bad_json": plain[: len(plain) // 2],
        "not_object": b"[1,2]",
        "nan": said.odd(b'"odd"', sent, b"NaN"),
        "nul": said.odd(b'"o\x00dd"', sent),
        "surrogates": said.odd(b'"\\ud83d"', sent),
        "empty_choices": said.empty(sent),
        "null_content": said.odd(b"null", sent),
        "bad_utf8": said.odd(b'"\xff\xfe"', sent),
    }
    if mode == "giant_chunk":
        return said.odd(b'"' + b"a" * int(mb * (1 << 20)) + b'"', sent)
    if mode == "deep_json":
        return said.odd(b'"odd"', sent)[:-1] + b',"deep":' + b"[" * _DEPTH + b"]" * _DEPTH + b"}"
    return events[mode]


def doubled(data: bytes) -> bytes:
    """The object with each of its keys twice."""
    return data[:-1] + b"," + data[1:]


def fattened(data: bytes, size: int) -> bytes:
    """The event with so much more text."""
    return _TEXT.sub(rb"\1" + b"a" * size, data, count=1)


def _whole(ids: Sequence[int]) -> str | None:
    """The text of the tokens; None for a part of a character."""
    try:
        return b"".join(small_tokenizer().data_of(token) for token in ids).decode()
    except UnicodeDecodeError:
        return None


def _words(code: int, key: str) -> str:
    """An engine that says too much: where it runs, and the key that it was given."""
    return f"failed with {code} on {PLACE} for key {key}"


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
