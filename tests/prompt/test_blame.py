"""Which field a template's refusal names."""

from dataclasses import replace
from typing import Any

import pytest
from support.vocabulary import SYNTAX, fixed_clock, model_files

from gateway.errors import BadRequest
from gateway.prompt.prompter import Prompter
from gateway.request import GenerateRequest, Message, ToolSpec

SOURCE = (
    "{{ 'level ' + level if level is defined }}"
    "{% for t in tools or [] %}{{ t.function.name + t.function.description }}"
    "{{ t.function.parameters.properties | tojson }}{{ 'kind ' + t.function.parameters.kind | default('') }}{% endfor %}"
    "{% for m in messages %}{{ raise_exception('odd') if m.content == 'odd' }}{{ m.content }}{% endfor %}"
)
KINDLESS = ToolSpec("f", "d", {"type": "object", "properties": {}, "kind": 5})


@pytest.mark.parametrize(
    ("text", "fields", "param"),
    [
        ("hi", {"template_kwargs": {"level": 5}}, "chat_template_kwargs"),
        ("hi", {"tools": (KINDLESS,)}, "tools"),
        ("odd", {}, "messages"),
        ("odd", {"template_kwargs": {"level": "x"}, "tools": (KINDLESS,)}, "messages"),
    ],
)
def test_a_refusal_names_the_field_that_it_is_about(text: str, fields: dict[str, Any], param: str) -> None:
    prompter = Prompter(
        replace(model_files("full"), templates={"default": SOURCE}), tools="native", syntax=SYNTAX, clock=fixed_clock
    )
    with pytest.raises(BadRequest) as caught:
        prompter.prompt(GenerateRequest("m", (Message("user", text),), **fields))
    assert caught.value.param == param
    assert "chat template" in caught.value.message
