"""Which of a request's fields a template's refusal is about: the one without which it renders."""

from collections.abc import Callable, Mapping
from typing import Any

from gateway.errors import BadRequest

_GATEWAYS = frozenset({"messages", "tools", "documents", "add_generation_prompt"})  # the other variables are the client's choice


def blamed(error: BadRequest, variables: Mapping[str, Any], render: Callable[[Mapping[str, Any]], str]) -> BadRequest:
    """The refusal of these variables with its field: `chat_template_kwargs`, `tools`, or the error's own."""
    plain = {name: value for name, value in variables.items() if name in _GATEWAYS}
    if len(plain) < len(variables) and _renders(render, plain):
        return BadRequest(error.message, param="chat_template_kwargs")
    if variables.get("tools") and _renders(render, {**variables, "tools": []}):
        return BadRequest(error.message, param="tools")
    return error


def _renders(render: Callable[[Mapping[str, Any]], str], variables: Mapping[str, Any]) -> bool:
    try:
        render(variables)
    except BadRequest:
        return False
    return True
