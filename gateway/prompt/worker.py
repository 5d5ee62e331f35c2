"""A process that renders for the gateway, which can be killed: `python -m gateway.prompt.worker MODELS CPU_S`.

MODELS is a JSON list. A render that takes more than CPU_S seconds of the processor ends its process by SIGPROF, whether the
gateway is still there or not.

With its pool it is the shell of this package, which is pure otherwise. Each frame on standard input asks for one render, each on
standard output answers one, in the same order; before the first, an empty frame says that every model is read. It ends when its
input does. Frames hold JSON, never pickles, so that a template that breaks out of its sandbox has this process and no other.
"""

import os
import resource
import signal
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from gateway.errors import BadRequest, ContextTooLong, ModelFileError
from gateway.prompt.model_files import DEFAULT
from gateway.prompt.renderer import ControlTokens, Draft, Renderer
from gateway.prompt.source import read_model
from gateway.wire import jsonio

HEAD_BYTES = 4
_MAX_DATA_BYTES = 4 << 30  # a vocabulary of 262,144 tokens takes 0.4 GiB while it is read
_NICE = 5
_WARMING = Draft(DEFAULT, {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": True})


class Spoken(msgspec.Struct, frozen=True):
    """What tells one model's renderer from another's. `digest` is that of the files that the gateway has read."""

    source: str
    control_tokens: ControlTokens
    digest: str


class Ask(msgspec.Struct, frozen=True):
    """One render; `model` is the place in the worker's list."""

    model: int
    draft: Draft


class Made(msgspec.Struct, frozen=True, tag=True):
    """A Rendering; the ids as unsigned integers of 32 bits in the machine's own byte order."""

    text: str
    ids: bytes
    lost_bytes: int
    marked: bool
    left_out: tuple[str, ...] = ()
    tokenize_s: float | None = None


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A BadRequest."""

    message: str
    param: str | None


class TooLong(msgspec.Struct, frozen=True, tag=True):
    """A ContextTooLong: the prompt has this many tokens or more."""

    least_tokens: int


Answer = Made | Refused | TooLong


TOO_DEEP = Refused("The messages are nested too deeply.", "messages")


def framed(data: bytes) -> bytes:
    """The data after their length."""
    return len(data).to_bytes(HEAD_BYTES, "big") + data


def serve(
    asks: BinaryIO, answers: BinaryIO, renderers: Sequence[Renderer], bounded: Callable[[], AbstractContextManager[None]]
) -> None:
    """Answers until the input ends, in the middle of a frame or not. Each render is made within a `bounded`."""
    decoder = jsonio.Decoder(Ask)
    _write(answers, b"")
    while len(head := asks.read(HEAD_BYTES)) == HEAD_BYTES:
        size = int.from_bytes(head, "big")
        data = asks.read(size)
        if len(data) < size:
            return
        with bounded():
            answer = jsonio.encode(_answered(decoder, data, renderers))
        _write(answers, answer)


def _answered(decoder: jsonio.Decoder[Ask], data: bytes, renderers: Sequence[Renderer]) -> Answer:
    try:
        ask = decoder.decode(data)
    except jsonio.JsonError:  # what could be written
        return TOO_DEEP
    return _answer(renderers[ask.model], ask.draft)


def _answer(renderer: Renderer, draft: Draft) -> Answer:
    try:
        rendering = renderer.render(draft)
    except ContextTooLong as error:
        return TooLong(error.prompt_tokens)
    except BadRequest as error:
        return Refused(error.message, error.param)
    ids = array("I", rendering.ids).tobytes()
    return Made(rendering.text, ids, rendering.lost_bytes, rendering.marked, rendering.left_out, rendering.tokenize_s)


def _write(answers: BinaryIO, data: bytes) -> None:
    answers.write(framed(data))
    answers.flush()


@contextmanager
def cpu_bounded(seconds: float) -> Iterator[None]:
    """Ends this process where it uses more of the processor before the exit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


def warmed(spoken: Spoken) -> Renderer:
    """The renderer of a model, which has rendered once. Raises ModelFileError, also for other files than the gateway's."""
    files = read_model(Path(spoken.source))
    if files.digest() != spoken.digest:
        raise ModelFileError(f"{spoken.source}: The model's files have changed since the gateway read them: restart it.")
    renderer = Renderer(files, clock=lambda: datetime.now(UTC), timer=time.perf_counter, control_tokens=spoken.control_tokens)
    _answer(renderer, _WARMING)
    return renderer


def main() -> None:
    """The process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the gateway, which ends its workers when it no longer needs them
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)  # the gateway's loop comes first
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_DATA_BYTES, _MAX_DATA_BYTES))  # not the address space: model files are mapped
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not come between the answers
    try:
        renderers = [warmed(spoken) for spoken in jsonio.Decoder(list[Spoken]).decode(sys.argv[1])]
    except ModelFileError as error:
        sys.exit(str(error))  # on standard error, which the pool logs
    serve(sys.stdin.buffer, answers, renderers, partial(cpu_bounded, float(sys.argv[2])))


if __name__ == "__main__":
    main()
