"""Renders marked conversations with a template, to learn what it shows."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gateway.errors import BadRequest, ModelFileError
from gateway.prompt.template import ChatTemplate

Support = Literal["yes", "no", "drops", "raises"]
ArgumentForm = Literal["object", "text"]
NoContentForm = Literal["empty", "absent", "null"]
Json = dict[str, Any]

NAME = "probe_function"
_PRINTED = ("'type': 'thinking'", "'probe_key': '")  # Python's own writing of what the template took for text
USER: Mapping[str, Any] = {"role": "user", "content": "probeusermark"}
TOOLS: Sequence[Json] = [
    {
        "type": "function",
        "function": {
            "name": NAME,
            "description": "probedescriptionmark",
            "parameters": {
                "type": "object",
                "properties": {"probe_key": {"type": "string", "description": "probe"}},
                "required": ["probe_key"],
            },
        },
    }
]


def written(value: str, form: ArgumentForm) -> object:
    """A probe's arguments, as a call has them."""
    return {"probe_key": value} if form == "object" else f'{{"probe_key": "{value}"}}'


def without_content(form: NoContentForm) -> Json:
    """What a message that only calls has for its content."""
    return {} if form == "absent" else {"content": "" if form == "empty" else None}


def call_of(call_id: str, name: str, arguments: object) -> Json:
    """A call, as an assistant's message has it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


class Rig:
    """Renders probes. A template that cannot do without tools is given an empty list, or, if need be, tools always."""

    def __init__(self, template: ChatTemplate, specials: Mapping[str, str]) -> None:
        self._template = template
        self._specials = specials
        self._without: Sequence[Json] | None = None
        if self.shows([USER], "probeusermark") != "yes":
            reason = self.reason([USER])
            self._without = []
            if self.shows([USER], "probeusermark") != "yes":
                self._without = TOOLS
            if self.shows([USER], "probeusermark") != "yes":
                raise ModelFileError(f"The chat template does not show one user message to the model: {reason}")

    @property
    def no_tools(self) -> Literal["null", "empty"]:
        """What the template takes for no tools."""
        return "null" if self._without is None else "empty"

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Json] = (), prompt: bool = False, **switches: Any
    ) -> str:
        given: Json = {
            "messages": [dict(message) for message in messages],
            "tools": [*tools] or self._without,
            "documents": None,
            "add_generation_prompt": prompt,
        }
        return self._template.render({**self._specials, **switches, **given})

    def drawn(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        """The text of these, without a generation prompt."""
        return self.render(messages, tools=[dict(tool) for tool in tools or ()])

    def reason(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Why the template does not show these, in its own words."""
        try:
            self.render(messages, tools=TOOLS if len(messages) > 1 else ())
        except BadRequest as error:
            return error.message.partition(": ")[2]
        return "its text is left out"

    def shows(
        self,
        messages: Sequence[Mapping[str, Any]],
        *marks: str,
        tools: Sequence[Json] = (),
        switches: Mapping[str, Any] | None = None,
    ) -> Support:
        """Whether every mark is in the text, and as such: `no` where one is, but printed as Python writes it."""
        try:
            text = self.render(messages, tools=tools, **(switches or {}))
        except BadRequest:
            return "raises"
        if not all(mark in text for mark in marks):
            return "drops"
        return "no" if any(python in text for python in _PRINTED) else "yes"

    def alike(self, one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], *, tools: Sequence[Json]) -> bool:
        """Whether both are shown, by the same text."""
        try:
            return self.render(one, tools=tools) == self.render(other, tools=tools)
        except BadRequest:
            return False

    def shows_all(self, conversations: Sequence[Sequence[Mapping[str, Any]]], *marks: str, tools: Sequence[Json] = ()) -> Support:
        """The first answer that is not `yes`, if there is one."""
        found = (self.shows(messages, *marks, tools=tools) for messages in conversations)
        return next((support for support in found if support != "yes"), "yes")
