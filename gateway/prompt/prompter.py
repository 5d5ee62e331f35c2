"""A request to the prompt of one model: text, ids, stop ids and what the engine must enforce.

Three steps, of which only the middle one is costly, and may run elsewhere: `plan` maps the request to what the template can show,
a Renderer makes text and ids of that, `finished` puts both together.

Invariant: `plan` gives a Plan or raises a ClientError that names the field; the same request gives the same prompt (but for
the date, where the template asks for it). What cannot fit is refused before it costs anything, and nothing that fits is.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from gateway.errors import BadRequest, ModelFileError, shown
from gateway.formats.base import CallSyntax
from gateway.prompt.constrain import broken_calls, call_answer, restate
from gateway.prompt.normalize import Turn, fit, fit_kwargs, sure_texts, thinking_switch, tool_dict, turns
from gateway.prompt.probe import Capabilities, probe
from gateway.prompt.renderer import Draft, Renderer, Rendering, refuse_over
from gateway.prompt.source import DEFAULT, TOOL_USE, ModelFiles
from gateway.prompt.tokenizer import Tokenizer
from gateway.request import Constraint, GenerateRequest, Prompt, ToolSpec

ToolMode = Literal["native", "constrained"]
MAX_NOTES = 32  # of one prompt: a long history may give one for each message


@dataclass(frozen=True, slots=True)
class Plan:
    """A prompt before it is rendered: the draft, and what is known of the prompt without its text.

    `opening` is how the assistant's turn begins in the draft's template, empty where it does not say.
    """

    draft: Draft
    opening: str
    constraint: Constraint | None
    notes: tuple[str, ...]


class Prompter:
    """Speaks to one model. Calls may come from several threads where `guard`, a lock, keeps its cache whole."""

    def __init__(
        self,
        files: ModelFiles,
        *,
        tools: ToolMode,
        syntax: CallSyntax | None,
        clock: Callable[[], datetime],
        seconds: Callable[[], float] | None = None,
        guard: AbstractContextManager[object] | None = None,
    ) -> None:
        """Raises ModelFileError for a template that does not compile or does not render one user message."""
        if tools == "constrained" and syntax is None:
            raise ModelFileError("tools: constrained needs a format whose calls are JSON objects in a wrapper.")
        self._files = files
        self._mode = tools
        self._syntax = syntax
        self.renderer = Renderer(files, clock=clock, seconds=seconds, guard=guard)
        self._can = {name: probe(self.renderer.templates[name], files.specials) for name in self._used()}

    def _used(self) -> tuple[str, ...]:
        """The templates that prompts are made with."""
        return (DEFAULT, TOOL_USE) if self._mode == "native" and TOOL_USE in self._files.templates else (DEFAULT,)

    @property
    def capabilities(self) -> Capabilities:
        """What the template does with each kind of message; the one for tools, where the model has one of its own."""
        return self._can.get(TOOL_USE, self._can[DEFAULT])

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary."""
        return self._files.tokenizer

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Text to id of the tokens that are cut out of the text first."""
        return self._files.tokenizer.special_ids

    @property
    def bos_id(self) -> int | None:
        """The token that by the model's own rules stands before a text; None where none does. Chat templates write it themselves."""
        return self._files.tokenizer.id_of(self._files.bos) if self._files.bos is not None else None

    @property
    def context_tokens(self) -> int | None:
        """The model's context length, None where its files do not say. The engine's own may be smaller."""
        return self._files.context_tokens

    def least_tokens(self, request: GenerateRequest) -> int:
        """How many tokens the prompt has at the least, told without a render: what messages of users and tools alone take."""
        return self.tokenizer.least_tokens(sure_texts(request.messages))

    def prompt(self, request: GenerateRequest, context_tokens: int | None = None) -> Prompt:
        """All three steps. Raises as they do."""
        plan = self.plan(request, context_tokens)
        return self.finished(plan, self.renderer.render(plan.draft))

    def plan(self, request: GenerateRequest, context_tokens: int | None = None) -> Plan:
        """Raises BadRequest with the field, and ContextTooLong where it cannot fit into `context_tokens`, told from its length
        alone: one that may fit is made and counted. With `tool_choice: none` the tools are not shown to the model."""
        if context_tokens is not None:
            refuse_over(context_tokens, self.least_tokens(request))
        offered = _offered(request)
        template = TOOL_USE if offered and TOOL_USE in self._can else DEFAULT
        can = self._can[template]
        constraint = self._constraint(request, offered, can)
        said = turns(request.messages)
        conversation, tools = self._stated(said, offered, can)
        kwargs, unread = fit_kwargs(request.template_kwargs, self.renderer.templates[template].variables)
        messages, notes = fit(conversation, can, thinking_switch(kwargs))
        variables = {
            **kwargs,
            "messages": messages,
            "tools": tools or (None if can.no_tools == "null" else []),
            "documents": None,
            "add_generation_prompt": True,
        }
        broken = broken_calls(said) if self._mode == "constrained" else ()
        return Plan(Draft(template, variables, context_tokens), can.opening, constraint, (*broken, *notes, *unread))

    def finished(self, plan: Plan, rendering: Rendering) -> Prompt:
        """The prompt that a plan's rendering makes."""
        text, notes = rendering.text, plan.notes
        if rendering.lost_bytes:
            notes = (
                f"{rendering.lost_bytes} bytes of the prompt have no token in the model's vocabulary and are left out",
                *notes,
            )
        begin = text.rfind(plan.opening) if plan.opening else -1
        return Prompt(
            text=text,
            ids=rendering.ids,
            stop_ids=self._files.stop_ids,
            constraint=plan.constraint,
            notes=notes if len(notes) <= MAX_NOTES else (*notes[:MAX_NOTES], f"and {len(notes) - MAX_NOTES} more"),
            tail=text[begin:] if begin >= 0 else "",
        )

    def _stated(
        self, conversation: list[Turn], offered: tuple[ToolSpec, ...], can: Capabilities
    ) -> tuple[list[Turn], list[dict[str, Any]]]:
        """The conversation, and the tools for the template where it shows them itself."""
        if self._mode == "constrained" and self._syntax is not None:
            return restate(conversation, offered, self._syntax), []
        return conversation, [tool_dict(tool, can.tool_keys) for tool in offered]

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
