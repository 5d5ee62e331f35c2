"""A request to the prompt of one model: text, ids, stop ids and what the engine must enforce.

Three steps, of which only the middle one is costly, and may run elsewhere: `plan` maps the request to what the template can show,
a Renderer makes text and ids of that, `finished` puts both together.

Invariant: `plan` gives a Plan or raises a ClientError that names the field; the same request gives the same prompt (but for
the date, where the template asks for it). What cannot fit is refused before it costs anything, and nothing that fits is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal

from gateway.errors import BadRequest, ModelFileError, shown
from gateway.formats.base import CallSyntax
from gateway.prompt.constrain import broken_calls, call_answer, cut_thoughts, restate
from gateway.prompt.conversation import Turn, sure_texts, turns
from gateway.prompt.model_files import DEFAULT, TOOL_USE, ModelFiles
from gateway.prompt.normalize import fit, fit_kwargs, thinking_switch, tool_dict
from gateway.prompt.probe import Capabilities, probe, shown_thinking
from gateway.prompt.profile import Profile
from gateway.prompt.proof import claims
from gateway.prompt.renderer import ControlTokens, Draft, Renderer, Rendering, refuse_over
from gateway.prompt.thought_end import ThoughtEnd, thought_end
from gateway.prompt.tokenizer import Tokenizer
from gateway.prompt.turn_end import Render, answer_opener, turn_end
from gateway.request import Constraint, GenerateRequest, Prompt, ToolSpec

ToolMode = Literal["native", "constrained"]
MAX_NOTES = 32  # of one prompt
_MANY_ALIKE = 4  # notes that differ in the message alone: more are one note with their number


@dataclass(frozen=True, slots=True)
class Plan:
    """A prompt before it is rendered: what was asked, the draft, and what is known of the prompt without its text.

    `opening` is how the assistant's turn begins in the draft's template, empty where it does not say.
    """

    request: GenerateRequest
    draft: Draft
    opening: str
    constraint: Constraint | None
    notes: tuple[str, ...]


class Prompter:
    """Speaks to one model. Calls may come from several threads where `guard`, a lock, keeps its cache whole.

    `control_tokens` as for `Renderer`. What a `profile` says is followed, else the templates are probed. `turn_ends` are the
    tokens with which the templates end the model's turn, by their text; `stop_ids` are the profile's, else the declared end
    tokens and those. `warnings` are what the operator should know of the model's files.
    """

    def __init__(
        self,
        files: ModelFiles,
        *,
        tools: ToolMode,
        syntax: CallSyntax | None,
        clock: Callable[[], datetime],
        seconds: Callable[[], float] | None = None,
        timer: Callable[[], float] | None = None,
        guard: AbstractContextManager[object] | None = None,
        control_tokens: ControlTokens = "text",
        profile: Profile | None = None,
    ) -> None:
        """Raises ModelFileError for a template that does not compile or does not render one user message, and for a profile that
        does not say what a template can do."""
        if tools == "constrained" and syntax is None:
            raise ModelFileError("tools: constrained needs a format whose calls are JSON objects in a wrapper.")
        self._files = files
        self._mode = tools
        self._syntax = syntax
        self.renderer = Renderer(files, clock=clock, seconds=seconds, timer=timer, guard=guard, control_tokens=control_tokens)
        self._profile = profile
        self._can = {name: self._known(name) for name in self._used()}
        self._openers = {name: answer_opener(self._drawn(name), can.opening) for name, can in self._can.items()}
        self.turn_ends = self._turn_ends()
        undeclared = {text: token_id for text, token_id in self.turn_ends.items() if token_id not in files.stop_ids}
        self.stop_ids = files.stop_ids | {*undeclared.values()}
        if profile is not None:
            undeclared = {}
            self.stop_ids = frozenset(token.id for token in profile.stop)
        self.warnings = self.renderer.conflicts + tuple(
            f"the chat template ends the model's turn with {text} (id {token_id}), which the model's files do not declare as an "
            "end token: answers end there all the same"
            for text, token_id in undeclared.items()
        )

    def _known(self, name: str) -> Capabilities:
        """What a template can do."""
        if self._profile is None:
            return probe(self.renderer.templates[name], self._files.specials)
        if name not in self._profile.templates:
            raise ModelFileError(f"The profile says nothing of the chat template {shown(name)}: derive it again.")
        return self._profile.templates[name]

    def _used(self) -> tuple[str, ...]:
        """The templates that prompts are made with."""
        return (DEFAULT, TOOL_USE) if self._mode == "native" and TOOL_USE in self._files.templates else (DEFAULT,)

    def _drawn(self, name: str, **switches: Any) -> Render:
        """How a template shows messages, without a generation prompt."""
        template = self.renderer.templates[name]
        without: Sequence[Mapping[str, Any]] | None = None if self._can[name].no_tools == "null" else []

        def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
            given = {"messages": messages, "tools": tools or without, "documents": None, "add_generation_prompt": False}
            return template.render({**self._files.specials, **switches, **given})

        return render

    def _turn_ends(self) -> Mapping[str, int]:
        """The turn ends that the templates write, by their text."""
        controls = [token.text for token in self.tokenizer.added if token.special]
        found = {turn_end(self._drawn(name), can, controls) for name, can in self._can.items()}
        return {text: self.tokenizer.special_ids[text] for text in sorted(filter(None, found))}

    @property
    def abilities(self) -> Mapping[str, Capabilities]:
        """What each template can do that prompts are made with, by its name."""
        return self._can

    @property
    def sources(self) -> Mapping[str, str]:
        """The source of each template that prompts are made with, by its name."""
        return {name: self._files.templates[name] for name in self._can}

    @property
    def capabilities(self) -> Capabilities:
        """What the template does with each kind of message; the one for tools, where the model has one of its own."""
        return self._can.get(TOOL_USE, self._can[DEFAULT])

    def thought_end(self, closer: str) -> ThoughtEnd | None:
        """How the model's thoughts are ended: as its template does it, or by its format's `closer` alone where the template does
        not show it; None where the format has no thoughts."""
        if not closer:
            return None
        said = self._profile.thought_end if self._profile is not None else None
        if said is not None and closer in said.before_any:
            return said
        name = TOOL_USE if TOOL_USE in self._can else DEFAULT
        can = self._can[name]
        shown = self._drawn(name, **shown_thinking(can.hides_thoughts))
        return thought_end(shown, can, closer) or ThoughtEnd(closer, closer)

    @property
    def one_call(self) -> bool:
        """Whether an answer may have one call only: the template could not show the model two of them in its next turn."""
        return self._mode == "native" and self.capabilities.tool_calls == "yes" and self.capabilities.parallel_calls != "yes"

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary."""
        return self._files.tokenizer

    def digest(self) -> str:
        """What tells whether another process has read the same of the model's files; computed anew each time."""
        return self._files.digest()

    @property
    def bos_id(self) -> int | None:
        """The token that by the model's own rules begins a text; None where none does. Chat templates write it themselves."""
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
        template = self._template(request, offered)
        can = self._can[template]
        constraint = self._constraint(request, offered, can)
        said = turns(request.messages)
        conversation, tools = self._stated(said, offered, can)
        kwargs, unread = fit_kwargs(request.template_kwargs, self.renderer.templates[template].variables)
        if tools:
            can = replace(can, first_answer=can.first_beside_tools)
        messages, notes = fit(conversation, can, thinking_switch(kwargs))
        if request.continue_final_message:
            _check_continued(request, messages)
        variables = {
            **kwargs,
            "messages": messages,
            "tools": tools or (None if can.no_tools == "null" else []),
            "documents": None,
            "add_generation_prompt": request.add_generation_prompt and not request.continue_final_message,
        }
        restated = (*broken_calls(said), *cut_thoughts(said, can.old_thoughts)) if self._mode == "constrained" else ()
        said_all = claims(conversation, [tool.name for tool in offered], can)
        draft = Draft(template, variables, context_tokens, request.continue_final_message, said_all)
        opening = self._openers[template] if draft.continues else can.opening
        return Plan(request, draft, opening, constraint, (*restated, *notes, *unread))

    def finished(self, plan: Plan, rendering: Rendering) -> Prompt:
        """The prompt that a plan's rendering makes."""
        text, notes = rendering.text, (*_grouped(plan.notes), *rendering.left_out)
        if rendering.marked:
            notes = (*self._given_as_text(plan), *notes)
        if rendering.lost_bytes:
            notes = (
                f"{rendering.lost_bytes} bytes of the prompt have no token in the model's vocabulary and are left out",
                *notes,
            )
        return Prompt(
            text=text,
            ids=rendering.ids,
            stop_ids=self.stop_ids,
            constraint=plan.constraint,
            notes=notes if len(notes) <= MAX_NOTES else (*notes[:MAX_NOTES], f"and {len(notes) - MAX_NOTES} more"),
            tail=_tail(plan, text),
            tokenize_s=rendering.tokenize_s,
        )

    def _given_as_text(self, plan: Plan) -> Iterator[str]:
        """Notes on where the client's text spells control tokens."""
        request = plan.request
        kwargs = request.template_kwargs.items()
        read = [(f"chat_template_kwargs.{name}", value) for name, value in kwargs if name in plan.draft.variables]
        said = [(f"messages[{index}]", asdict(message)) for index, message in enumerate(request.messages)]
        tools = [(f"tools[{index}]", asdict(tool)) for index, tool in enumerate(request.offered)]
        for place, value in (*said, *tools, *read):
            if self.renderer.spells_controls(value):
                yield f"control tokens in {place} were given as text"

    def _template(self, request: GenerateRequest, offered: tuple[ToolSpec, ...]) -> str:
        """The one for tools, where the model has one: for tools, and for calls of the history that the other does not show."""
        called = any(message.tool_calls for message in request.messages) and self._can[DEFAULT].tool_calls != "yes"
        return TOOL_USE if TOOL_USE in self._can and (offered or called) else DEFAULT

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


def _grouped(notes: Sequence[str]) -> Iterator[str]:
    """The notes, but for many of one kind, of which a long history may have one for each message."""
    alike: dict[str, list[str]] = {}
    for note in notes:
        alike.setdefault(note.partition(": ")[2] or note, []).append(note)
    for words, same in alike.items():
        if len(same) <= _MANY_ALIKE:
            yield from same
        else:
            yield f"{same[0].partition(': ')[0]} and {len(same) - 1} more: {words}"


def _tail(plan: Plan, text: str) -> str:
    """The end of the text from the last turn's header on. A continued message is in it whole."""
    if plan.draft.continues:
        said_from = text.rfind(plan.draft.variables["messages"][-1]["content"].strip())
        header = text.rfind(plan.opening, 0, said_from) if plan.opening else -1
        return text[header if header >= 0 else said_from :]
    begin = text.rfind(plan.opening) if plan.opening and plan.request.add_generation_prompt else -1
    return text[begin:] if begin >= 0 else ""


def _check_continued(request: GenerateRequest, messages: Sequence[Mapping[str, Any]]) -> None:
    """The last message must be an answer's text, of which the template shows the end."""
    place = f"messages[{len(request.messages) - 1}]"
    said, last = request.messages[-1], messages[-1]
    if said.role != "assistant" or said.tool_calls or not said.content:
        raise BadRequest(
            "continue_final_message needs an assistant message with text and without tool calls as the last one.", param=place
        )
    if last["role"] != "assistant" or not isinstance(last.get("content"), str):
        raise BadRequest("The model's chat template shows this message only in parts: it cannot be continued.", param=place)
    if request.answer is not None:
        raise BadRequest(
            "response_format cannot be enforced on the rest of an answer; leave it or continue_final_message out.",
            param="response_format",
        )


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
