"""A request to the prompt of one model: text, ids, stop ids and what the engine must enforce.

Invariant: `prompt` gives a Prompt or raises a ClientError that names the field; the same request gives the same prompt (but for
the date, where the template asks for it); there is at most one BOS. What cannot fit is refused before it costs anything, and
nothing that fits is.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from gateway.errors import BadRequest, ContextTooLong, ModelFileError, shown
from gateway.formats.base import CallSyntax
from gateway.prompt.constrain import broken_calls, call_answer, restate
from gateway.prompt.normalize import Turn, fit, sure_texts, tool_dict, turns, unread_kwargs
from gateway.prompt.probe import Capabilities, probe
from gateway.prompt.segments import Segments, cut_tokens
from gateway.prompt.source import DEFAULT, TOOL_USE, ModelFiles
from gateway.prompt.template import ChatTemplate
from gateway.prompt.tokenizer import Tokenizer
from gateway.request import Constraint, GenerateRequest, Prompt, ToolSpec

ToolMode = Literal["native", "constrained"]
MAX_NOTES = 32  # of one prompt: a long history may give one for each message


@dataclass(frozen=True, slots=True)
class _Voice:
    """One of the model's templates, and what it can do."""

    template: ChatTemplate
    can: Capabilities


class Prompter:
    """Speaks to one model. Calls may come from several threads where `guard`, a lock, keeps its cache whole.

    `tokenised_whole` says why prompts are not tokenised in segments, and is empty where they are.
    """

    def __init__(
        self,
        files: ModelFiles,
        *,
        tools: ToolMode,
        syntax: CallSyntax | None,
        clock: Callable[[], datetime],
        guard: AbstractContextManager[object] | None = None,
    ) -> None:
        """Raises ModelFileError for a template that does not compile or does not render one user message."""
        if tools == "constrained" and syntax is None:
            raise ModelFileError("tools: constrained needs a format whose calls are JSON objects in a wrapper.")
        self._files = files
        self._mode = tools
        self._syntax = syntax
        self._voice = _voice(files, DEFAULT, clock)
        cuts, self.tokenised_whole = cut_tokens(files.tokenizer.added, _written(self._voice, files))
        self._segments = Segments(files.tokenizer, cuts, guard=guard) if cuts else None
        native_tools = tools == "native" and TOOL_USE in files.templates
        self._tool_voice = _voice(files, TOOL_USE, clock) if native_tools else self._voice

    @property
    def capabilities(self) -> Capabilities:
        """What the template does with each kind of message; the one for tools, where the model has one of its own."""
        return self._tool_voice.can

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary."""
        return self._files.tokenizer

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Text to id of the tokens that are cut out of the text first."""
        return self._files.tokenizer.special_ids

    @property
    def context_tokens(self) -> int | None:
        """The model's context length, None where its files do not say. The engine's own may be smaller."""
        return self._files.context_tokens

    def least_tokens(self, request: GenerateRequest) -> int:
        """How many tokens the prompt has at the least, told without a render: what messages of users and tools alone take."""
        return self.tokenizer.least_tokens(sure_texts(request.messages))

    def prompt(self, request: GenerateRequest, context_tokens: int | None = None) -> Prompt:
        """Raises BadRequest with the field, and ContextTooLong where it cannot fit into `context_tokens`, told from its length
        alone: one that may fit is made and counted. With `tool_choice: none` the tools are not shown to the model."""
        if context_tokens is not None:
            _refuse_over(context_tokens, self.least_tokens(request))
        offered = _offered(request)
        voice = self._tool_voice if offered else self._voice
        constraint = self._constraint(request, offered, voice.can)
        said = turns(request.messages)
        conversation, tools = self._stated(said, offered)
        messages, notes = fit(conversation, voice.can)
        text = voice.template.render(
            {
                **request.template_kwargs,
                **self._files.specials,
                "messages": messages,
                "tools": tools,
                "documents": None,
                "add_generation_prompt": True,
            }
        )
        if context_tokens is not None:
            _refuse_over(context_tokens, self.tokenizer.least_tokens((text,)))
        broken = broken_calls(said) if self._mode == "constrained" else ()
        unread = unread_kwargs(request.template_kwargs, voice.template.variables)
        return self._finished(text, voice.can.opening, constraint, (*broken, *notes, *unread))

    def _stated(self, conversation: list[Turn], offered: tuple[ToolSpec, ...]) -> tuple[list[Turn], list[dict[str, Any]] | None]:
        """The conversation, and the tools for the template where it shows them itself."""
        if self._mode == "constrained" and self._syntax is not None:
            return restate(conversation, offered, self._syntax), None
        return conversation, [tool_dict(tool) for tool in offered] or None

    def _constraint(self, request: GenerateRequest, offered: tuple[ToolSpec, ...], can: Capabilities) -> Constraint | None:
        if not offered:
            return request.answer
        if self._mode == "native" and can.tools != "yes":
            raise BadRequest(
                "The model's chat template ignores tools, so that it would never see them. With `tools: constrained` in the "
                "model's settings the gateway states them itself.",
                param="tools",
            )
        if request.answer is not None:
            raise BadRequest(
                "response_format cannot be enforced together with tools; leave one out or set tool_choice to none.",
                param="response_format",
            )
        if self._mode == "native" and request.tool_choice.mode == "auto":
            return None
        if self._syntax is None:
            raise BadRequest(
                f"tool_choice {request.tool_choice.mode} cannot be enforced for this model's call format, only auto and none.",
                param="tool_choice",
            )
        if self._mode == "constrained":  # not trained for calls: it would make one after the other until the token limit
            return call_answer(request, self._syntax, max_calls=1)
        return call_answer(request, self._syntax)

    def _finished(self, text: str, opening: str, constraint: Constraint | None, notes: tuple[str, ...]) -> Prompt:
        tokenizer, bos = self._files.tokenizer, self._files.bos
        if bos is not None and not text.startswith(bos):
            text = bos + text
        lost = tokenizer.lost(text)
        if lost:
            notes = (f"{len(lost)} bytes of the prompt have no token in the model's vocabulary and are left out", *notes)
        begin = text.rfind(opening) if opening else -1
        return Prompt(
            text=text,
            ids=self._segments.encode(text) if self._segments is not None else tokenizer.encode(text),
            stop_ids=self._files.stop_ids,
            constraint=constraint,
            notes=notes if len(notes) <= MAX_NOTES else (*notes[:MAX_NOTES], f"and {len(notes) - MAX_NOTES} more"),
            tail=text[begin:] if begin >= 0 else "",
        )


def _voice(files: ModelFiles, name: str, clock: Callable[[], datetime]) -> _Voice:
    template = ChatTemplate(files.templates[name], clock)
    return _Voice(template, probe(template, files.specials))


def _refuse_over(context_tokens: int, least_tokens: int) -> None:
    """An answer needs one token of the context at the least."""
    if least_tokens >= context_tokens:
        raise ContextTooLong(least_tokens, context_tokens, at_least=True)


def _written(voice: _Voice, files: ModelFiles) -> str:
    """What the template itself writes around a user's message and the model's turn."""
    messages = [{"role": "user", "content": "a"}]
    return voice.template.render({**files.specials, "messages": messages, "add_generation_prompt": True})


def _offered(request: GenerateRequest) -> tuple[ToolSpec, ...]:
    """The tools that the model may see. Raises BadRequest for a choice that they cannot satisfy."""
    choice = request.tool_choice
    if choice.mode in {"required", "named"} and not request.tools:
        raise BadRequest("tool_choice asks for a tool call, but there are no tools.", param="tool_choice")
    known = {tool.name for tool in request.tools}
    for name in choice.names:
        if name not in known:
            raise BadRequest(f"tool_choice names {shown(name)}, which is not among the tools.", param="tool_choice")
    return request.offered
