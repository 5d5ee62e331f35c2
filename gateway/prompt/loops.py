"""Whether an agent's requests each go on from the one before, as an engine's cache needs it.

Templates that take thoughts out of the history, or that open one in the generation prompt, change what was sent already: from
there on the engine computes everything anew.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from gateway.errors import BadRequest
from gateway.prompt.profile import Loop
from gateway.prompt.prompter import Prompter
from gateway.prompt.tokenizer import Tokenizer
from gateway.prompt.written import whole_markers
from gateway.request import GenerateRequest, Message, Prompt, ToolCall, ToolSpec
from gateway.wire.text import common_start

PLAIN = "plain"
_SHOWN_CHARS = 48  # of where two requests part
_TOOL = ToolSpec("read_file", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
_SYSTEM = Message("system", "Help with the files of this folder.")


def agent_loops(prompter: Prompter) -> Mapping[str, Loop]:
    """Each loop by its name. One that the template refuses is left out."""
    found: dict[str, Loop] = {}
    for name, requests in _loops(prompter):
        try:
            prompts = [prompter.prompt(request) for request in requests]
        except BadRequest:
            continue
        found[name] = max((_step(*step, prompter.tokenizer) for step in pairwise(prompts)), key=lambda loop: loop.lost_tokens)
    return found


def _loops(prompter: Prompter) -> Iterator[tuple[str, list[GenerateRequest]]]:
    plain = [_SYSTEM, _asked(1), _answered(1), _asked(2), _answered(2), _asked(3)]
    calls = [_SYSTEM, _asked(1), *_called(1), *_called(2), *_called(3)]
    user = [*calls, _answered(1), _asked(2), *_called(4)]
    tools = (_TOOL,) if prompter.capabilities.tools == "yes" else ()
    yield PLAIN, _requests(plain, (2, 4, 6), ())
    yield "tools", _requests(calls, (2, 4, 6, 8), tools)
    yield "tools_then_user", _requests(user, (8, 10, 12), tools)


def _requests(said: Sequence[Message], ends: Sequence[int], tools: tuple[ToolSpec, ...]) -> list[GenerateRequest]:
    return [GenerateRequest(model="", messages=tuple(said[:end]), tools=tools) for end in ends]


def _asked(number: int) -> Message:
    return Message("user", f"Question {number}: what is in the file?")


def _answered(number: int) -> Message:
    return Message("assistant", f"Answer {number}: a list of names.", reasoning=f"Thought {number}: that is a list.")


def _called(number: int) -> tuple[Message, Message]:
    call = ToolCall(f"loopcall{number}", _TOOL.name, f'{{"path": "file {number}"}}')  # nine letters and digits
    return (
        Message("assistant", None, reasoning=f"Call {number}: the file must be read.", tool_calls=(call,)),
        Message("tool", f"Result {number}: one line.", tool_call_id=call.id),
    )


def _step(earlier: Prompt, later: Prompt, tokenizer: Tokenizer) -> Loop:
    """What a turn loses of the request before it."""
    ids = zip(earlier.ids, later.ids, strict=False)
    shared = next((at for at, (one, other) in enumerate(ids) if one != other), min(len(earlier.ids), len(later.ids)))
    lost = len(earlier.ids) - shared
    if not lost:
        return Loop(stable=True)
    detokenizer = tokenizer.detokenizer()
    begun = "".join(detokenizer.add(each) for each in earlier.ids[:shared])
    at = len(whole_markers(begun if earlier.text.startswith(begun) else common_start(earlier.text, later.text)))
    return Loop(False, lost, earlier.text[at : at + _SHOWN_CHARS])
