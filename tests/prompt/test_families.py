"""Every model family with a small template of our own: what becomes of the same conversations, to the letter.

`tests/data/families/conversations.yaml` holds bodies as clients send them. Beside it each family has a folder: `template.jinja`,
its markers and rules in our own words, and `transcript.yaml`:

    real:                   templates of ../shared/templates that make the same of every conversation, each with the part that is
      NAME: turns           compared: `whole`, or `turns`, from the words of the first user message on, after texts of the maker's
    apart: {loop: why}      conversations of which the real ones make something else
    specials: {...}         the tokens that the template knows by name
    prompts:
      plain:                a conversation by its name; for one of the family's own `like` names what it begins with, and `with`
        text: |             replaces fields of the body. Then either the prompt,
        left_out: [...]     with the words that the family does not show, and the notes,
        notes: [...]
      loop:
        refused: tools      or the field that the refusal names
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.real_templates import REAL_TEMPLATES, needs_real
from support.vocabulary import SYNTAX, fixed_clock, model_files
from transformers.utils.chat_template_utils import _compile_jinja_template

from gateway.dialects.base import Limits
from gateway.dialects.openai_chat import OpenAIChat
from gateway.errors import BadRequest
from gateway.prompt.prompter import Prompter
from gateway.request import GenerateRequest
from gateway.wire import jsonio

DATA = Path(__file__).parents[1] / "data" / "families"
CONVERSATIONS: dict[str, Any] = yaml.safe_load((DATA / "conversations.yaml").read_text(encoding="utf-8"))
TRANSCRIPTS: dict[str, dict[str, Any]] = {
    path.parent.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(DATA.glob("*/transcript.yaml"))
}
ROWS = [
    pytest.param(family, name, id=f"{family}-{name}")
    for family, transcript in TRANSCRIPTS.items()
    for name in transcript["prompts"]
]
REAL_ROWS = [
    pytest.param(family, real, id=f"{family}-{real}") for family, transcript in TRANSCRIPTS.items() for real in transcript["real"]
]


@cache
def _speaker(family: str, template: Path) -> Prompter:
    """A model of the family with this template."""
    source = {"default": template.read_text(encoding="utf-8")}
    files = replace(model_files("full"), templates=source, specials=TRANSCRIPTS[family]["specials"])
    return Prompter(files, tools="native", syntax=SYNTAX, clock=fixed_clock)


def _own(family: str) -> Path:
    return DATA / family / "template.jinja"


def _body(family: str, name: str) -> dict[str, Any]:
    row = TRANSCRIPTS[family]["prompts"][name]
    begun = CONVERSATIONS.get(row.get("like", name), {})
    return {"model": "m", **begun, **row.get("with", {})}


def _request(family: str, name: str) -> GenerateRequest:
    return OpenAIChat().parse(jsonio.encode(_body(family, name)), Limits())


def _text(speaker: Prompter, request: GenerateRequest) -> str:
    """The prompt, or the field that the refusal names."""
    try:
        return speaker.prompt(request).text
    except BadRequest as error:
        return f"refused: {error.param}"


def _words(body: dict[str, Any]) -> Iterator[str]:
    """What the client said: texts, thoughts, calls and tools."""
    for message in body["messages"]:
        yield from (message[key] for key in ("content", "reasoning_content") if message.get(key))
        for call in message.get("tool_calls", ()):
            yield call["function"]["name"]
            arguments = jsonio.decode(call["function"]["arguments"])
            yield from (value for value in arguments.values() if isinstance(value, str))
    for tool in body.get("tools", ()):
        yield from (tool["function"]["name"], tool["function"]["description"])


def test_every_family_tells_of_every_conversation() -> None:
    assert {path.parent.name for path in DATA.glob("*/template.jinja")} == set(TRANSCRIPTS)
    for family, transcript in TRANSCRIPTS.items():
        assert set(CONVERSATIONS) <= set(transcript["prompts"]), family


@pytest.mark.parametrize(("family", "name"), ROWS)
def test_the_prompt_to_the_letter(family: str, name: str) -> None:
    row = TRANSCRIPTS[family]["prompts"][name]
    speaker, request = _speaker(family, _own(family)), _request(family, name)
    if "refused" in row:
        with pytest.raises(BadRequest) as caught:
            speaker.prompt(request)
        assert caught.value.param == row["refused"]
        return
    prompt = speaker.prompt(request)
    assert prompt.text == row["text"]
    assert list(prompt.notes) == row.get("notes", [])


@pytest.mark.parametrize(("family", "name"), ROWS)
def test_every_word_is_shown_or_known_to_be_left_out(family: str, name: str) -> None:
    row = TRANSCRIPTS[family]["prompts"][name]
    if "refused" not in row:
        words = list(_words(_body(family, name)))
        shown = {word for word in words if word in row["text"] or jsonio.dumps(word) in row["text"]}
        assert [word for word in words if word not in shown] == row.get("left_out", [])


@pytest.mark.parametrize(("family", "name"), ROWS)
def test_transformers_writes_the_same(family: str, name: str) -> None:
    row = TRANSCRIPTS[family]["prompts"][name]
    if "refused" in row:
        return
    plan = _speaker(family, _own(family)).plan(_request(family, name))
    template = _compile_jinja_template(_own(family).read_text(encoding="utf-8"))
    template.globals["strftime_now"] = fixed_clock().strftime
    assert template.render(**plan.draft.variables, **TRANSCRIPTS[family]["specials"]) == row["text"]


@needs_real
@pytest.mark.parametrize(("family", "real"), REAL_ROWS)
def test_the_real_template_writes_the_same(family: str, real: str) -> None:
    transcript = TRANSCRIPTS[family]
    own, other = _speaker(family, _own(family)), _speaker(family, REAL_TEMPLATES / f"{real}.jinja")
    compared = set(transcript["prompts"]) - set(transcript.get("apart", {}))
    assert "plain" in compared
    for name in sorted(compared):
        mine, theirs = (_text(speaker, _request(family, name)) for speaker in (own, other))
        if transcript["real"][real] == "turns" and not mine.startswith("refused: "):
            first = next(message["content"] for message in _body(family, name)["messages"] if message["role"] == "user")
            mine, theirs = mine.partition(first)[2], theirs.partition(first)[2]
        assert mine == theirs, name
