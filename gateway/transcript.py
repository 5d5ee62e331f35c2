"""An answer's own tokens so far, whichever engines made them, and what an engine needs to go on from there.

Invariant: what an engine goes on from says the same as what the client was given, and the client is given nothing twice. None
goes on behind a stop id. The ids are the engines' own. Where a stream lost those of a character (llama.cpp), two ways are open:
to go on from the last id before it and to pass over the text that is known, while it is the same (`resumed`); or from the
vocabulary's ids for that character, where the engine itself is to be told more (`continued`).
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from engines.base import MAX_COUNT, Chunk, Work
from gateway.answer import AnswerReader
from gateway.errors import EngineDiffers
from gateway.prompt.tokenizer import Tokenizer
from gateway.request import Delta, Usage

MAX_IDS = 32_768  # of an answer that another engine can go on with


class Transcript:
    """Reads chunks with `reader`, and keeps what they are made of. `keep_all`: of a longer answer too. `went_on`: an engine made
    one of the `stop_ids` and went on."""

    def __init__(
        self, reader: AnswerReader, tokenizer: Tokenizer, *, stop_ids: frozenset[int] = frozenset(), keep_all: bool = False
    ) -> None:
        self._reader = reader
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._keep_all = keep_all
        self._ids: list[int] = []
        self._sure = 0  # ids before the first that was lost
        self._unsure: list[str] = []  # the text since
        self._unsure_tokens = 0
        self._known_text = ""  # what an engine that resumed has still to say again
        self._known_tokens = 0  # about as many tokens
        self._given = 0  # tokens of the answer in the prompt that the engine goes on from
        self._heard = False  # of the engine, so that it had its say on what was cached
        self._cached = 0
        self._most_cached = MAX_COUNT
        self.resumable = True
        self.went_on = False

    @property
    def ended(self) -> bool:
        """Whether the answer is complete."""
        return self._reader.ended

    @property
    def in_thought(self) -> bool:
        """Whether it is in a thought, and amid no character, marker or call."""
        return self._reader.in_thought

    @property
    def repeats(self) -> bool:
        """Whether the next text is known: an engine that resumed says it again."""
        return bool(self._known_text)

    @property
    def tokens(self) -> int:
        """How many tokens an engine that goes on with it is given."""
        return len(self._ids)

    @property
    def sure_ids(self) -> Sequence[int]:
        """The ids that were read, before the first that was lost."""
        return self._ids[: self._sure]

    @property
    def counted(self) -> int:
        """How many tokens were read, each once."""
        return self._reader.tally.tokens

    def read(self, chunk: Chunk) -> list[Delta]:
        """The deltas that this chunk completes. Raises EngineDiffers where an engine that resumed says something else, of which
        nothing is kept then."""
        self._heard = True
        new = self._new(chunk) if self._known_text else chunk
        if self.resumable or self._keep_all:
            self._keep(chunk)
        return self._reader.read(new if new.usage is None else self._of_answer(new, new.usage))

    def add(self, text: str, ids: Sequence[int]) -> list[Delta]:
        """Reads what the gateway says in the engine's place."""
        self._ids += ids
        return self._reader.read(Chunk(text=text, tokens=len(ids), ids=tuple(ids)))

    def cut(self) -> list[Delta]:
        """No token is left: the answer ends here."""
        return self._reader.read(Chunk(finish="length"))

    def _keep(self, chunk: Chunk) -> None:
        lost = chunk.ids is None and bool(chunk.text)
        if lost or self._unsure:
            self._unsure.append(chunk.text)
            self._unsure_tokens += chunk.tokens
        if chunk.ids is not None:
            self._ids += chunk.ids
            self.went_on = self.went_on or not self._stop_ids.isdisjoint(chunk.ids)
        elif chunk.text:
            self._ids += self._tokenizer.encode_after(chunk.text)
        if not self._unsure:
            self._sure = len(self._ids)
        if len(self._ids) > MAX_IDS:
            self.resumable = False
            self._forget_unsure()

    def _forget_unsure(self) -> None:
        self._unsure.clear()
        self._unsure_tokens = 0

    def _of_answer(self, chunk: Chunk, usage: Usage) -> Chunk:
        """The chunk with the engine's counts as if it had made the whole answer at once."""
        self._cached = min(usage.cached_tokens, self._most_cached)
        prompt, completion = usage.prompt_tokens - self._given, usage.completion_tokens + self._given
        return msgspec.structs.replace(chunk, usage=Usage(prompt, completion, self._cached, usage.reasoning_tokens))

    def _new(self, chunk: Chunk) -> Chunk:
        """What of the chunk the client has not been given."""
        known, text = self._known_text, chunk.text
        if text == known or (text.startswith(known) and not chunk.logprobs):
            tokens = 0 if text == known else max(chunk.tokens - self._known_tokens, 1)
            self._known_text, self._known_tokens = "", 0
            return msgspec.structs.replace(chunk, text=text[len(known) :], tokens=tokens)
        if not known.startswith(text) or chunk.stop_id is not None or chunk.finish is not None:
            raise EngineDiffers("The engine that went on with a broken answer said something else.")
        self._known_text = known[len(text) :]
        self._known_tokens = max(self._known_tokens - chunk.tokens, 0)
        return msgspec.structs.replace(chunk, text="", tokens=0, ids=(), logprobs=())

    def continued(self, work: Work) -> Work | None:
        """What is left of the work, all of the answer in its prompt; None where its tokens are used up."""
        self._sure = len(self._ids)
        self._forget_unsure()
        rest = self._rest(work)
        if rest is None or rest.constraint is None:
            return rest
        return replace(rest, constraint=replace(rest.constraint, thought_closer=None))

    def resumed(self, work: Work) -> Work | None:
        """What is left of the work once its engine broke off; None where its tokens are used up. Raises ValueError for an answer
        that `went_on`."""
        if self.went_on:
            raise ValueError("this answer had its end")
        self._known_text = "".join(self._unsure) + self._known_text
        self._known_tokens += self._unsure_tokens
        self._forget_unsure()
        del self._ids[self._sure :]
        return self._rest(work)

    def _rest(self, work: Work) -> Work | None:
        used, sampling = len(self._ids), work.request.sampling
        self._given = used
        if self._heard:
            self._most_cached = self._cached
        left = None if work.max_tokens is None else work.max_tokens - used
        if left is not None and left <= 0:
            return None
        least = None if sampling.min_tokens is None else max(sampling.min_tokens - used, 0)
        return replace(
            work,
            request=replace(work.request, sampling=replace(sampling, min_tokens=least)),
            ids=(*work.ids, *self._ids),
            max_tokens=left,
        )
