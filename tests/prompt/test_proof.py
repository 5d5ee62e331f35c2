"""The proof that a prompt holds what the client said: by hand, and by real templates in conversations that their probes do not
see."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from support.real_templates import REAL_FILES, needs_real, real_template
from support.vocabulary import SYNTAX, fixed_clock, model_files

from gateway.errors import BadRequest
from gateway.prompt.conversation import turns
from gateway.prompt.probe import Capabilities
from gateway.prompt.prompter import Prompter
from gateway.prompt.proof import claims, proved
from gateway.request import GenerateRequest, Message, Prompt, ToolCall, ToolSpec
from gateway.wire import jsonio

ALL = Capabilities(
    "yes", "yes", "no", "no", "yes", "yes", "yes", "yes", "yes", "object", "text", "empty", "reasoning_content", ""
)
TOOL = ToolSpec("TOOLQ", "d", {"type": "object", "properties": {"a": {"type": "string"}}})
LONG = "".join(f"line {number}: 'x' \"y\" é\n" for number in range(40))


def user(text: str = "ASKQ") -> Message:
    return Message("user", text)


def calling(call_id: str, arguments: str = '{"a": "ARGQ"}', text: str | None = None) -> Message:
    return Message("assistant", text, tool_calls=(ToolCall(call_id, "CALLQ", arguments),))


def result(call_id: str, text: str) -> Message:
    return Message("tool", text, tool_call_id=call_id)


def notes(text: str, *messages: Message, tools: tuple[str, ...] = (), **changes: Any) -> tuple[str, ...]:
    return proved(text, claims(turns(messages), tools, replace(ALL, **changes)))


def place(text: str, *messages: Message, tools: tuple[str, ...] = (), **changes: Any) -> str | None:
    with pytest.raises(BadRequest, match=r"The model's chat template leaves .* out of the prompt here\.") as caught:
        notes(text, *messages, tools=tools, **changes)
    return caught.value.param


@pytest.mark.parametrize("said", [user(LONG), user(" \n hi\n"), Message("system", "s"), Message("assistant", 'a"b\\c'), user("")])
def test_what_is_shown_is_no_matter(said: Message) -> None:
    text = str(said.content)
    for written in (text, text.strip(), jsonio.dumps(text), jsonio.dumps(jsonio.dumps(text)), jsonio.dumps(text.strip())):
        assert notes(f"<x>{written}<y>", said) == ()


def test_text_in_ascii_escapes_is_shown() -> None:
    assert notes('"gr\\u00f6\\u00dfe \\ud83e\\udd99"', user("größe 🦙")) == ()


@pytest.mark.parametrize(
    ("text", "messages", "expected"),
    [
        ("", (user(),), "messages[0]"),
        ("ASKQ", (user(), Message("assistant", "ANSQ")), "messages[1]"),
        ("ASKQ", (Message("system", "SYSQ"), user()), "messages[0]"),
        ("ASKQ CALLQ ARGQ", (user(), calling("c"), result("c", LONG)), "messages[2]"),
        ("ASKQ CALLQ", (user(), calling("c")), "messages[1].tool_calls[0]"),
        ("ASKQ ARGQ", (user(), calling("c")), "messages[1].tool_calls[0]"),
        ("CALLQ ASKQ", (user(), calling("c", "{}")), "messages[1].tool_calls[0]"),
        ("ASKQ CALLQ {", (user(), calling("c", '{"a": broken')), "messages[1].tool_calls[0]"),
    ],
)
def test_what_is_left_out_is_refused_by_its_place(text: str, messages: tuple[Message, ...], expected: str) -> None:
    assert place(text, *messages) == expected


def test_tools_are_refused_where_none_is_named() -> None:
    assert place("ASKQ", user(), tools=("f", "g")) == "tools"
    assert notes("f ASKQ", user(), tools=("f", "g")) == ("tools: partly left out, or changed, by the chat template",)


@pytest.mark.parametrize("text", [LONG[:200], LONG[-200:], f"{LONG[:300]}...{LONG[-100:]}"])
def test_what_is_left_out_in_part_is_noted(text: str) -> None:
    assert notes(text, user(LONG)) == ("messages[0]: partly left out, or changed, by the chat template",)


def test_what_the_template_changes_is_noted() -> None:
    assert notes("please say much more", user("</x>please say much more")) == (
        "messages[0]: partly left out, or changed, by the chat template",
    )


def test_text_beside_calls_may_be_left_out_with_a_note() -> None:
    said = (user(), calling("c", text="BESIDEQ"))
    assert notes("ASKQ CALLQ ARGQ", *said) == ("messages[1]: text beside calls left out by the chat template",)
    assert notes("ASKQ CALLQ ARGQ", *said, called_text="nowhere") == (), "said already"
    assert notes("ASKQ CALLQ ARGQ BESIDEQ", *said) == ()


def test_thoughts_and_words_to_the_template_may_be_left_out() -> None:
    assert notes("a", Message("assistant", "a", reasoning="r")) == ()
    cut = Message("assistant", "t</think>")
    assert notes("", cut, cuts_at=frozenset({"</think>"})) == ()
    assert place("", cut) == "messages[0]"
    assert notes("Be brief.", Message("system", "Be brief. /no_think")) == notes("", Message("system", "/no_think")) == ()


def test_the_order_of_messages_is_no_matter_and_what_is_not_looked_for_is_told() -> None:
    calls = Message("assistant", None, tool_calls=tuple(ToolCall(f"c{number}", "CALLQ", "{}") for number in range(200)))
    results = [result(f"c{number}", f"result {number}: {'y' * 400}") for number in range(200)]
    text = "\n".join(["CALLQ", *(str(each.content) for each in results)])
    assert notes(text, calls, *results) == notes(text, calls, *results[:9], *results[20:9:-1]) == ()
    (told,) = notes(text, calls, *reversed(results))
    assert told.endswith("and what follows it was not looked for in the prompt")


@cache
def speaker(name: str) -> Prompter:
    files = replace(model_files("full"), templates={"default": real_template(name)})
    return Prompter(files, tools="native", syntax=SYNTAX, clock=fixed_clock)


def outcome(name: str, messages: tuple[Message, ...], tools: tuple[ToolSpec, ...]) -> Prompt | BadRequest:
    try:
        return speaker(name).prompt(GenerateRequest("m", messages, tools=tools))
    except BadRequest as error:
        return error


NAMES = [path.stem for path in REAL_FILES]
TWO = Message(
    "assistant", None, tool_calls=(ToolCall("callone01", "CALLQ", '{"a": "ARGQ"}'), ToolCall("calltwo02", "CALLQ", "{}"))
)
R1, R2 = result("callone01", "RESONEQ"), result("calltwo02", "RESTWOQ")
ONE = calling("callone01")
SHAPES: dict[str, tuple[Message, ...]] = {
    "late result after an answer": (user(), TWO, R1, Message("assistant", "ANSQ"), R2, user("LASTQ")),
    "user between results": (user(), TWO, R1, user("MIDQ"), R2),
    "result twice": (user(), ONE, R1, result("callone01", "AGAINQ")),
    "system after a call": (user(), ONE, Message("system", "SYSQ"), R1),
    "developer after results": (user(), ONE, R1, Message("developer", "DEVQ"), Message("assistant", "ANSQ"), user("LASTQ")),
    "calls, then an answer": (user(), ONE, Message("assistant", "ANSQ"), R1),
    "call first": (ONE, R1, user()),
    "system, call": (Message("system", "SYSQ"), ONE, R1, user()),
    "system, answer": (Message("system", "SYSQ"), Message("assistant", "ANSQ"), user()),
    "only a system message": (Message("system", "SYSQ"),),
}


@needs_real
@pytest.mark.parametrize("tools", [(), (TOOL,)], ids=["plain", "tools"])
@pytest.mark.parametrize("name", NAMES)
def test_real_templates_drop_nothing_where_probes_do_not_look(name: str, tools: tuple[ToolSpec, ...]) -> None:
    for shape, messages in SHAPES.items():
        made = outcome(name, messages, tools)
        if isinstance(made, BadRequest):
            assert (made.param or "").startswith(("messages", "tools")), shape
            continue
        said = [*(message.content for message in messages), *(tool.name for tool in tools)]
        said += [word for message in messages for call in message.tool_calls for word in (call.name, "ARGQ")]
        assert not [word for word in said if word and str(word) not in made.text], (shape, made.notes)


@needs_real
@pytest.mark.parametrize(
    ("name", "shape", "param"),
    [
        ("meta-llama-Llama-3.1-8B-Instruct", "call first", "messages[0]"),
        ("meta-llama-Llama-3.2-3B-Instruct", "system, call", "messages[1]"),
        ("meta-llama-Llama-3.1-8B-Instruct", "system, answer", "messages[1]"),
        ("google-gemma-4-31B-it", "late result after an answer", "messages[4]"),
        ("google-gemma-4-31B-it", "user between results", "messages[4]"),
        ("Mistral-Small-3.2-24B-Instruct-2506", "only a system message", "tools"),
    ],
)
def test_what_real_templates_drop_is_refused_by_its_place(name: str, shape: str, param: str) -> None:
    made = outcome(name, SHAPES[shape], (TOOL,))
    assert isinstance(made, BadRequest), made
    assert made.param == param


@needs_real
def test_notes_tell_of_what_an_assistant_said_that_real_templates_drop() -> None:
    said = (user(), calling("callone01", text="BESIDEQ"), R1, Message("assistant", "ANSQ"), user("LASTQ"))
    answered = outcome("openai-gpt-oss-120b", said, (TOOL,))
    assert isinstance(answered, Prompt)
    assert answered.notes == (
        "messages[1]: text beside calls given as a thought",
        "messages[1]: text beside calls left out by the chat template",
    )
    cut = outcome("google-gemma-4-31B-it", (user(), Message("assistant", "<|channel>KEEPQ<channel|>z"), user()), ())
    assert isinstance(cut, Prompt)
    assert cut.notes == ("messages[1]: what stands before <channel|> is a thought to the template",)
    again = (*said[:3], calling("calltwo02", text="MOREQ"), R2, user("LASTQ"))
    later = outcome("trl-deepseekv3", again, ())
    assert isinstance(later, Prompt)
    assert later.notes == ("messages[3]: text beside calls left out by the chat template",)


@pytest.mark.parametrize(
    ("source", "messages", "param"),
    [
        ("{% for m in messages[-20:] %}{{ m.content }}{% endfor %}", [user(f"ASK{n}Q") for n in range(25)], "messages[0]"),
        ("{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}", [user("all</think>")], "messages[0]"),
        ("{% for m in messages %}{{ m.content | truncate(200) }}{% endfor %}", [user(LONG)], None),
    ],
)
def test_templates_that_drop_what_is_long_are_found(source: str, messages: list[Message], param: str | None) -> None:
    files = replace(model_files("full"), templates={"default": source})
    prompter = Prompter(files, tools="native", syntax=SYNTAX, clock=fixed_clock)
    if param is None:
        (note,) = prompter.prompt(GenerateRequest("m", tuple(messages))).notes
        assert note == "messages[0]: partly left out, or changed, by the chat template"
        return
    with pytest.raises(BadRequest) as caught:
        prompter.prompt(GenerateRequest("m", tuple(messages)))
    assert caught.value.param == param


REPR = (
    "{%- for m in messages -%}{{ m.role }}{{ m.content }}{%- for c in m.tool_calls or [] -%}{{ c.function.name }}"
    "{%- for k, v in c.function.arguments.items() -%}{{ k }}{{ v | string }}{%- endfor -%}{%- endfor -%}{%- endfor -%}"
)


@pytest.mark.parametrize("value", ['Use "a"\nor b?', "it's", "both ' and \" here", "a\u00a0b 👩\u200d💻", 'dir "C:\\x"'])
def test_values_written_as_python_writes_them_are_there(value: str) -> None:
    arguments = jsonio.dumps({"a": [{"q": value}]})
    files = replace(model_files("echo"), templates={"default": REPR})
    speaker = Prompter(files, tools="native", syntax=None, clock=fixed_clock)
    said = (Message("user", "USERQ"), calling("callone01", arguments), Message("tool", "RESQ", tool_call_id="callone01"))
    assert speaker.prompt(GenerateRequest(model="m", messages=said)).notes == ()


@needs_real
def test_what_a_template_takes_out_of_a_system_message_is_a_note() -> None:
    said = (Message("system", "Reason in <think></think>, then answer."), Message("user", "hi"))
    given = outcome("HuggingFaceTB-SmolLM3-3B", said, ())
    assert isinstance(given, Prompt)
    assert len(given.notes) == 1


@needs_real
def test_blank_text_beside_a_call_is_no_text() -> None:
    call = replace(calling("callone01", text="\n\n"), reasoning="hm")
    given = outcome("openai-gpt-oss-120b", (Message("user", "hi"), call, Message("tool", "r", tool_call_id="callone01")), (TOOL,))
    assert isinstance(given, Prompt)
