"""What a worker reads and writes, without its process."""

from array import array
from contextlib import nullcontext
from io import BytesIO

from support.vocabulary import fixed_clock, model_files

from gateway.prompt.renderer import Draft, Renderer
from gateway.prompt.worker import HEAD_BYTES, Answer, Ask, Made, Refused, TooLong, framed, serve
from gateway.wire import jsonio

RENDERER = Renderer(model_files("strict"), clock=fixed_clock)


def draft(*roles: str, context_tokens: int | None = None) -> Draft:
    return Draft("default", {"messages": [{"role": role, "content": "the Hello" * 99} for role in roles]}, context_tokens)


def answers(data: bytes) -> list[bytes]:
    """The frames that the worker writes for this input."""
    out = BytesIO()
    serve(BytesIO(data), out, [RENDERER], nullcontext)
    out.seek(0)
    found = []
    while head := out.read(HEAD_BYTES):
        found.append(out.read(int.from_bytes(head, "big")))
    return found


def test_each_ask_has_its_answer_after_the_empty_frame() -> None:
    asked = [draft("user"), draft("user", "user"), draft("user", context_tokens=5)]
    ready, *frames = answers(b"".join(framed(jsonio.encode(Ask(0, each))) for each in asked))
    decoder: jsonio.Decoder[Answer] = jsonio.Decoder(Answer)  # type: ignore[arg-type]  # a union of types
    done, refused, too_long = map(decoder.decode, frames)
    assert ready == b""
    rendering = RENDERER.render(asked[0])
    assert done == Made(rendering.text, array("I", rendering.ids).tobytes(), 0, False)
    assert isinstance(refused, Refused)
    assert (refused.param, "refuses" in refused.message) == ("messages", True)
    assert isinstance(too_long, TooLong)
    assert too_long.least_tokens > 5


def test_an_input_that_ends_within_a_frame_is_the_end() -> None:
    frame = framed(jsonio.encode(Ask(0, draft("user"))))
    for end in (0, 3, HEAD_BYTES, len(frame) - 1):
        assert answers(frame[:end]) == [b""]
    assert len(answers(frame + frame[:2])) == 2
