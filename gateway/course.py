"""How one attempt's chunks become bytes for the client: parsed here, or passed on as the engine parsed them.

Invariant: the encoder hears nothing of what was taken before `written` is asked for, and of a whole answer nothing before
`close`, so that an answer that missed its schema can be thrown away.
"""

from collections.abc import Sequence
from typing import Protocol

from engines.base import Chunk, Traits, Work
from gateway.answer import AnswerChecker, CallChecker, PassedReader, Tally, made_of, used
from gateway.errors import EngineBroke
from gateway.formats.check import call_check
from gateway.job import Job
from gateway.made import Made
from gateway.model import Rendered
from gateway.reading import reader_for, thought_limit
from gateway.request import Delta, Finish, ParseFailure, Prompt, ReasoningText, Tokens, Usage
from gateway.transcript import Transcript

_UNSEEN = frozenset({ParseFailure, Finish, Tokens})  # what a reader of the answer does not see
_NO_OUTPUT = _UNSEEN | {ReasoningText}


class Course(Protocol):
    """How one attempt's chunks become bytes for the client."""

    output: bool
    """Whether anything was read that a reader of the answer sees and that is no thought."""

    @property
    def choices(self) -> int:
        """How many answers it is the course of."""

    @property
    def ended(self) -> bool:
        """Whether the answer is complete before the engine says so."""

    def take(self, chunks: Sequence[Chunk]) -> bool:
        """Reads the chunks; whether they hold something that a reader of the answer sees."""

    def written(self) -> bytes:
        """What was read since and is now the client's. Of a whole answer nothing is before `close`."""

    @property
    def must_go_on(self) -> bool:
        """Whether the engine is to stop here, and to go on from what `continued` says."""

    def continued(self, work: Work) -> Work | None:
        """The work that is left of this one, once a thought that may be no longer was ended; None where none is left."""

    @property
    def resumable(self) -> bool:
        """Whether another engine can go on with what was read, token by token."""

    @property
    def went_on(self) -> bool:
        """Whether an engine went on after a stop id, so that no other would make what it made."""

    @property
    def repeats(self) -> bool:
        """Whether the engine says what the client was given already, before it goes on."""

    def resumed(self, work: Work) -> Work | None:
        """The work that is left of this one, once its engine broke off; None where none is left, so that the answer ends."""

    def close(self) -> None:
        """The engine is done: what was kept until that was certain goes to the encoder. Raises EngineBroke without an end."""

    @property
    def schema_missed(self) -> bool:
        """Whether an answer that should fit a schema does not."""

    @property
    def usage(self) -> Usage:
        """The tokens, by the engine's count where it gave one."""

    @property
    def made(self) -> Made:
        """What was made of the answer so far."""

    @property
    def answer_ids(self) -> Sequence[int]:
        """The ids of the answer so far, up to where they are not known."""


class RenderedCourse:
    """The course of an engine that the gateway rendered for: one choice, parsed here.

    The deltas of a whole answer are kept until the attempt is over, so that one that missed its schema can be repeated.
    """

    choices = 1

    def __init__(self, job: Job, rendered: Rendered, prompt: Prompt, choice: int, *, by_ids: bool) -> None:
        """`by_ids` as for `reader_for`."""
        self._reader = reader_for(
            rendered,
            job.request,
            prompt,
            rules=job.model.rules,
            by_ids=by_ids,
            hold_arguments=rendered.hold_arguments or not job.sink.streamed,  # so that a call cut by the limit is its text
            new_call_id=job.services.new_call_id,
            check=job.check,
        )
        limited = job.request.reasoning_budget is not None
        tokenizer, stop_ids = rendered.prompter.tokenizer, prompt.stop_ids
        self._transcript = Transcript(self._reader, tokenizer, stop_ids=stop_ids, keep_all=limited)
        self._limit = thought_limit(rendered, job.request, prompt, self._transcript)
        self._read = self._limit.read if self._limit is not None else self._transcript.read
        self._encoder = job.encoder
        self._choice = choice
        self._streamed = job.sink.streamed
        self._opened = False
        self._kept: list[Delta] = []
        self.output = False
        job.ledger.begin(choice, self._reader.tally)

    @property
    def ended(self) -> bool:
        """Whether the answer is complete, for the engine or by a stop of ours."""
        return self._reader.ended

    @property
    def schema_missed(self) -> bool:
        """Whether a call or the answer missed its schema."""
        return self._reader.tally.schema_missed

    @property
    def usage(self) -> Usage:
        """The engine's counts where it gave them, else ours."""
        return self._reader.tally.final_usage()

    @property
    def made(self) -> Made:
        """The one choice of it."""
        return self._reader.tally.made()

    @property
    def answer_ids(self) -> Sequence[int]:
        """Those before the first that its engine did not tell."""
        return self._transcript.sure_ids

    def take(self, chunks: Sequence[Chunk]) -> bool:
        """Parses the chunks."""
        seen = False
        for chunk in chunks:
            deltas = self._read(chunk)
            if deltas:
                self._kept += deltas
                seen = seen or any(type(delta) not in _UNSEEN for delta in deltas)
                self.output = self.output or any(type(delta) not in _NO_OUTPUT for delta in deltas)
        self._opened = self._opened or seen
        return seen

    def written(self) -> bytes:
        """Encodes what was parsed. Before anything of it is seen the answer may still be begun anew: until then all is kept."""
        if not self._kept or not (self._opened or self._reader.ended) or not self._streamed:
            return b""
        deltas, self._kept = self._kept, []
        return self._encoder.feed(self._choice, deltas)

    @property
    def must_go_on(self) -> bool:
        """Whether the thought has all the tokens that it may have."""
        return self._limit is not None and self._limit.reached

    def continued(self, work: Work) -> Work | None:
        """The work that is left, the thought's end in its prompt. Without any the answer was cut there."""
        if self._limit is None:
            raise ValueError("this answer's thoughts have no limit")
        self._reader.tally.ended_thoughts += 1
        self._kept += self._limit.end_thought(work.max_tokens)
        return self._left(self._transcript.continued(work)) if not self._reader.ended else None

    @property
    def resumable(self) -> bool:
        """Whether all that is needed was kept."""
        return self._transcript.resumable

    @property
    def went_on(self) -> bool:
        """Whether a stop id is among what was read."""
        return self._transcript.went_on

    @property
    def repeats(self) -> bool:
        """Whether text is passed over."""
        return self._transcript.repeats

    def resumed(self, work: Work) -> Work | None:
        """The work that is left. What the reader holds of a character, a marker or a call stays held."""
        return self._left(self._transcript.resumed(work))

    def _left(self, rest: Work | None) -> Work | None:
        if rest is None:
            self._kept += self._transcript.cut()
        return rest

    def close(self) -> None:
        """A whole answer goes to its encoder now."""
        if not self._reader.ended:
            raise _endless()
        if self._kept:
            self._encoder.feed(self._choice, self._kept)


class PassedCourse:
    """The course of an engine that templates and parses itself: its events pass, all choices of them, measured and checked."""

    def __init__(self, job: Job, expected: int) -> None:
        self._job = job
        self._check = call_check(job.request.offered)
        self._expected = self.choices = expected
        self.output = False
        self._readers: dict[int, PassedReader] = {}
        self._streamed = job.sink.streamed
        self._opened = False  # a role alone does not begin an answer: until then a failure is a plain HTTP error
        self._kept: list[tuple[int, bytes | None, Sequence[Delta]]] = []

    @property
    def ended(self) -> bool:
        """Never before the engine's own end: usage comes after the last choice."""
        return False

    @property
    def must_go_on(self) -> bool:
        """Never: an engine that parses itself minds thoughts itself."""
        return False

    def continued(self, work: Work) -> Work | None:
        """All of it."""
        return work

    @property
    def resumable(self) -> bool:
        """Never: nothing is known of its tokens."""
        return False

    @property
    def went_on(self) -> bool:
        """That is not known."""
        return False

    @property
    def repeats(self) -> bool:
        """Never."""
        return False

    def resumed(self, work: Work) -> Work | None:
        """All of it."""
        return work

    @property
    def schema_missed(self) -> bool:
        """Whether a call missed its schema."""
        return any(reader.tally.schema_missed for reader in self._readers.values())

    @property
    def usage(self) -> Usage:
        """What the engine said, else what was counted."""
        return used(self._tallies, self._job.ledger.engine_usage)

    @property
    def made(self) -> Made:
        """All choices of it."""
        return made_of(self._tallies, self.usage)

    @property
    def _tallies(self) -> list[Tally]:
        return [reader.tally for reader in self._readers.values()]

    @property
    def answer_ids(self) -> Sequence[int]:
        """None are known."""
        return ()

    def take(self, chunks: Sequence[Chunk]) -> bool:
        """Measures the chunks."""
        seen = False
        for chunk in chunks:
            reader = self._readers.get(chunk.choice) or self._reader(chunk.choice)
            ended = reader.ended
            deltas = reader.read(chunk)
            if chunk.usage is not None:
                self._job.ledger.engine_usage = reader.tally.usage
            if ended and (chunk.deltas or chunk.finish is not None):
                continue  # after the end of a choice nothing more of it is said
            if chunk.deltas and type(chunk.deltas[-1]) is not Tokens:  # which come before what is made of them
                seen = self._opened = True
                self.output = self.output or any(type(delta) not in _NO_OUTPUT for delta in chunk.deltas)
            elif chunk.finish is not None:
                self._opened = True
            self._kept.append((chunk.choice, chunk.raw, deltas))
        return seen

    def written(self) -> bytes:
        """Hands on what the chunks say."""
        if not self._streamed or not self._opened:
            return b""
        kept, self._kept = self._kept, []
        passed = self._job.encoder.passed
        return b"".join([passed(choice, raw, deltas) for choice, raw, deltas in kept if raw is not None])

    def close(self) -> None:
        """A whole answer goes to its encoder now."""
        if sum(reader.ended for reader in self._readers.values()) < self._expected:
            raise _endless()
        for choice, raw, deltas in self._kept:
            if raw is not None:
                self._job.encoder.passed(choice, raw, deltas)

    def _reader(self, choice: int) -> PassedReader:
        """The reader of a choice that is new."""
        if not 0 <= choice < self._expected:
            raise EngineBroke("The engine sent a choice that was not asked for.")
        check = None if self._job.request.stop else self._job.check  # a stop string may have cut it
        checker = AnswerChecker(check) if check is not None else None
        reader = PassedReader(CallChecker(self._check), rules=self._job.model.rules, checker=checker)
        self._readers[choice] = reader
        self._job.ledger.begin(choice, reader.tally)
        return reader


def course_of(job: Job, choice: int, traits: Traits) -> Course:
    """The course of the next attempt, on an engine with these traits. A passed one has all choices."""
    if job.prompt is None or job.model.rendered is None:
        return PassedCourse(job, job.request.n)
    return RenderedCourse(job, job.model.rendered, job.prompt, choice, by_ids=traits.streams_ids)


def _endless() -> EngineBroke:
    return EngineBroke("The engine's answer has no finish reason: it may be cut.")
