"""The test `template`: models pass with their own templates, and each damage fails the right case with the right words."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.checked import SPECIALS, checked_model, profiled, with_template
from support.real_templates import REAL_FILES, real_template
from support.subjects import FAMILIES, own_template
from support.vocabulary import fixed_clock, model_files, template_text

from gateway.checks.base import Case, Subject
from gateway.checks.control_tokens import spelled
from gateway.checks.conversations import conversations
from gateway.checks.reference import transformers_reference
from gateway.checks.template import check_template
from gateway.errors import BadRequest
from gateway.prompt.model_files import DEFAULT, TOOL_USE
from gateway.prompt.renderer import Draft

NOWHERE = Path("/no/such/directory")
FULL = template_text("full")
# Templates of other vocabularies are at odds with our small one in just this.
FOREIGN = frozenset({"markers"})


class Marked:
    """A reference that writes other text, or other ids."""

    name = "another 1.0"
    without_ids = ""

    def __init__(self, subject: Subject, *, text: str = "", ids: tuple[int, ...] = (), refuses: bool = False) -> None:
        self._renderer, self._text, self._ids, self._refuses = subject.prompter.renderer, text, ids, refuses

    def text(self, draft: Draft) -> str:
        if self._refuses:
            raise BadRequest("another 1.0 does not render this: no", param="messages")
        return self._renderer.render(draft).text + self._text

    def ids(self, draft: Draft) -> Sequence[int] | None:
        return (*self._renderer.render(draft).ids, *self._ids)


def failed(cases: Sequence[Case]) -> dict[str, Case]:
    return {case.name: case for case in cases if case.status == "failed"}


def checked(subject: Subject) -> list[Case]:
    cases = list(check_template(subject))
    names = [case.name for case in cases]
    assert len(names) == len(set(names))
    for case in cases:
        assert case.test == "template"
        assert case.status == "passed" or case.diagnosis.endswith("."), case
        assert case.status != "failed" or case.fix.endswith("."), case
    return cases


def only_failure(subject: Subject) -> Case:
    (case,) = failed(checked(subject)).values()
    return case


SOURCES = [pytest.param(own_template(name), id=name) for name in FAMILIES]
SOURCES += [pytest.param(file.read_text("utf-8"), id=file.stem, marks=pytest.mark.no_cover) for file in REAL_FILES]


@pytest.mark.parametrize("source", SOURCES)
def test_every_template_passes_with_transformers_beside_it(source: str) -> None:
    files = with_template(source)
    cases = checked(checked_model(files, form="plain", reference=transformers_reference(NOWHERE, files, fixed_clock)))
    assert not failed(cases).keys() - FOREIGN
    compared = [case for case in cases if case.name.endswith(" as transformers")]
    assert len(compared) >= 20
    assert {case.name: case.status for case in cases}["reference ids"] == "skipped"


def test_there_are_some_thirty_conversations_each_with_marks_of_its_own() -> None:
    made = list(conversations(tools=True, thoughts=True, switch=True, controls=["<s>"]))
    assert len(made) >= 30
    assert len({each.name for each in made}) == len(made)
    for each in made:
        words = [mark.word for mark in each.marks if mark.kind not in {"tool", "call"}]
        assert words, each.name
        assert len(words) == len(set(words)), each.name
    kinds = {mark.kind for each in made for mark in each.marks}
    assert kinds == {"text", "beside", "thought", "call", "result", "tool"}


def test_without_a_reference_the_rest_still_runs_and_says_why() -> None:
    cases = checked(checked_model(model_files("full")))
    assert not failed(cases)
    skipped = [case for case in cases if case.status == "skipped"]
    assert [case.name for case in skipped] == ["reference"]
    assert "transformers is not installed: `pip install '.[check]'` in a clone brings it" in skipped[0].diagnosis
    assert len(cases) > 40


def test_tools_that_the_gateway_states_are_shown_too() -> None:
    cases = checked(checked_model(with_template(own_template("chatml")), form="hermes", tools="constrained"))
    assert not failed(cases)
    assert "nested arguments" in {case.name for case in cases}


def test_files_that_changed_are_named() -> None:
    files = replace(model_files("full"), hashes={"chat_template.jinja": "1", "tokenizer.json": "2", "config.json": "3"})
    before = profiled(files)
    now = {"chat_template.jinja": "0", "tokenizer.json": "2", "generation_config.json": "4"}
    subject = replace(checked_model(files, before), now=now)
    cases = failed(checked(subject))
    assert [case.diagnosis for case in cases.values()] == [
        "chat_template.jinja has changed since the profile was made.",
        "config.json is gone since the profile was made.",
        "generation_config.json is new since the profile was made.",
    ]
    assert all("interlock onboard" in case.fix for case in cases.values())


def test_a_developer_role_that_is_dropped_under_a_profile_that_says_yes() -> None:
    source = FULL.replace("{%- for message in messages -%}", "{%- for message in messages if message.role != 'developer' -%}")
    files = with_template(source)
    said = profiled(files)
    assert said.templates[DEFAULT].developer == "drops"
    assert not failed(checked(checked_model(files, said)))
    claimed = replace(said, templates={DEFAULT: replace(said.templates[DEFAULT], developer="yes", later_developer="yes")})
    cases = failed(checked(checked_model(files, claimed)))
    assert set(cases) == {"developer", "system developer", "later developer"}
    assert "role developer, is not in the prompt: the template drops developermark" in cases["developer"].diagnosis
    assert "though the profile says developer: yes" in cases["developer"].diagnosis
    assert "`drops`" in cases["developer"].fix


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ({"tool_results": "yes", "tool_calls": "yes"}, "call", "the template drops"),
        ({"system": "yes"}, "system", "though the profile says system: yes"),
        ({"later_system": "yes"}, "later system", "later_system: yes"),
    ],
)
def test_what_the_template_drops_is_found_wherever_the_profile_says_yes(change: dict[str, str], name: str, words: str) -> None:
    files = with_template(
        "{% for m in messages if m.role in ['user', 'assistant'] %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        "{% endfor %}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    said = profiled(files, "plain")
    can = said.templates[DEFAULT]
    assert not failed(checked(checked_model(files, said)))
    cases = failed(checked(checked_model(files, replace(said, templates={DEFAULT: replace(can, **change)}))))  # type: ignore[arg-type]  # a field by its name
    assert words in cases[name].diagnosis


def test_tools_whose_parameters_the_template_leaves_out() -> None:
    source = "{% for t in tools or [] %}{{ t.function.name }}: {{ t.function.description }}\n{% endfor %}" + own_template(
        "chatml"
    )
    files = with_template(source)
    said = profiled(files, "plain")
    assert said.templates[DEFAULT].tools == "drops"
    claimed = replace(said, templates={DEFAULT: replace(said.templates[DEFAULT], tools="yes")})
    cases = failed(checked(checked_model(files, claimed)))
    assert "the template drops citymark" in cases["tools"].diagnosis


def test_a_refusal_that_the_profile_does_not_declare_fails() -> None:
    source = FULL.replace(
        "{{- '<|im_start|>' + message.role",
        "{%- if message.role == 'system' and not loop.first %}{{ raise_exception('only first') }}{% endif -%}\n"
        "    {{- '<|im_start|>' + message.role",
    )
    files = with_template(source)
    said = profiled(files)
    assert not failed(checked(checked_model(files, said)))
    claimed = replace(said, templates={DEFAULT: replace(said.templates[DEFAULT], later_system="yes")})
    case = only_failure(checked_model(files, claimed))
    assert case.name == "later system"
    assert "is refused, though the profile says system: yes, later_system: yes" in case.diagnosis
    assert "only first" in case.diagnosis


def test_a_thought_of_a_running_loop_that_is_dropped() -> None:
    source = FULL.replace("{%- if message.reasoning_content %}", "{%- if message.reasoning_content and not message.tool_calls %}")
    files = with_template(source)
    said = profiled(files, "hermes")
    cases = failed(checked(checked_model(files, said)))
    assert "thought in loop" in cases
    assert "the template drops thoughtmark" in cases["thought in loop"].diagnosis
    assert "reasoning: reasoning_content" in cases["thought in loop"].diagnosis


def test_a_double_bos() -> None:
    files = with_template("{{ bos_token }}{{ bos_token }}" + FULL)
    case = only_failure(checked_model(files))
    assert (case.name, "begins with <s> 2 times: '<s><s>" in case.diagnosis) == ("bos", True)


def test_a_second_bos_behind_blanks_is_one_too() -> None:
    assert only_failure(checked_model(with_template("{{ bos_token }}\n\n{{ bos_token }}" + FULL))).name == "bos"


def test_one_bos_is_right_and_a_wanted_one_that_is_missing_is_told() -> None:
    wanting = replace(with_template("{{ bos_token }}" + FULL), bos="<s>")
    assert not failed(checked(checked_model(wanting)))
    case = only_failure(checked_model(replace(with_template(FULL), bos="<s>")))
    assert case.name == "bos"
    assert "want <s> before each prompt, but this one begins with '<|im_start|>" in case.diagnosis


def test_a_template_of_another_vocabulary() -> None:
    case = only_failure(checked_model(with_template(own_template("llama3"))))
    assert case.name == "markers"
    assert "The template parts turns with '<|eot_id|>" in case.diagnosis
    assert "<|start_header_id|> is 17 tokens" in case.diagnosis


def test_markers_that_are_text_pass_where_a_token_ends_the_turn_but_not_unseen() -> None:
    turns = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n{% endfor %}"
    source = turns + "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    cases = {case.name: case for case in checked(checked_model(with_template(source), form="plain"))}
    assert cases["markers"].status == "skipped"
    assert "<|assistant|> is " in cases["markers"].diagnosis


def test_a_reference_that_writes_otherwise_fails_each_conversation() -> None:
    subject = checked_model(model_files("full"))
    texts = failed(checked(replace(subject, reference=Marked(subject, text="!"))))
    assert "The prompts part at character" in texts["user as another"].diagnosis
    ids = failed(checked(replace(subject, reference=Marked(subject, ids=(7,)))))
    assert "the token ids part at" in ids["user as another"].diagnosis
    assert ids["user as another"].diagnosis.endswith("[], by the reference [7].")
    assert "control tokens as another" not in ids
    refused = failed(checked(replace(subject, reference=Marked(subject, refuses=True))))
    assert refused["user as another"].diagnosis == "another 1.0 does not render this: no. The gateway does."


def test_a_prompt_that_differs_from_one_render_to_the_next() -> None:
    moments = iter(range(1, 10_000))

    def clock() -> datetime:
        return datetime.fromtimestamp(next(moments), UTC)

    files = with_template("{{ strftime_now('%S') }}" + FULL)
    assert not failed(checked(checked_model(files)))
    case = only_failure(checked_model(files, clock=clock))
    assert (case.name, "gave two prompts" in case.diagnosis) == ("twice", True)


def test_control_tokens_that_a_client_spells_are_text() -> None:
    subject = checked_model(model_files("full"))
    cases = {case.name: case for case in checked(subject)}
    assert cases["control tokens"].status == "passed"
    special = checked_model(model_files("full"), control_tokens="special")
    assert "control tokens" not in {case.name for case in checked(special)}


def test_a_template_that_looks_for_control_tokens_refuses_them() -> None:
    source = FULL.replace("{{- message.content -}}", "{{- message.content.split('<|im_end|>') | join('|') -}}")
    cases = {case.name: case for case in checked(checked_model(with_template(source)))}
    assert cases["control tokens"].status in {"passed", "skipped"}
    assert not failed(list(cases.values()))


@pytest.mark.parametrize("name", ["Qwen-Qwen2.5-7B-Instruct"])
def test_what_a_template_writes_of_its_own_is_no_mark(name: str) -> None:
    assert not failed(checked(checked_model(with_template(real_template(name), SPECIALS))))


def test_an_edited_template_under_an_old_profile() -> None:
    """It does not get as far as this where the model is served: what fails beside the file tells what the edit broke."""
    before = profiled(replace(model_files("full"), hashes={"chat_template.jinja": "1"}))
    edited = replace(with_template("{{ raise_exception('edited') }}"), hashes={"chat_template.jinja": "2"})
    cases = failed(checked(checked_model(edited, before)))
    assert cases["files: chat_template.jinja"].diagnosis == "chat_template.jinja has changed since the profile was made."
    assert "A plain conversation is refused" in cases["markers"].diagnosis
    assert "is refused, though the profile says nothing of it" in cases["user"].diagnosis


def test_each_named_template_is_held_to_what_the_profile_says_of_it() -> None:
    without = FULL.replace("{%- if tools %}", "{%- if false %}")
    files = replace(with_template(without), templates={DEFAULT: without, TOOL_USE: FULL})
    said = profiled(files, "hermes")
    assert said.templates[DEFAULT].tools == "drops"
    assert not failed(checked(checked_model(files, said, form="hermes")))
    deaf = replace(files, templates={DEFAULT: without, TOOL_USE: without})
    cases = failed(checked(checked_model(deaf, said, form="hermes")))
    assert "the template drops weather_toolmark (and 2 more), though the profile says tools: yes" in cases["tools"].diagnosis


def test_a_control_token_that_a_client_s_text_makes_is_found() -> None:
    subject = checked_model(model_files("full"))
    (conversation,) = (each for each in conversations(tools=False, thoughts=False, switch=False, controls=["<|im_end|>"])
                       if each.spells_controls)  # fmt: skip
    prompt = subject.prompter.prompt(conversation.request)
    assert spelled(subject, conversation, prompt).status == "passed"
    end = subject.files.tokenizer.special_ids["<|im_end|>"]
    case = spelled(subject, conversation, replace(prompt, ids=(*prompt.ids, end)))
    assert case.status == "failed"
    assert case.diagnosis == (
        "A client's text that spells <|im_end|> becomes the token itself: 4 of them stand in the prompt, not 3."
    )


def test_a_prompt_that_is_refused_the_second_time() -> None:
    days = iter(range(1, 10_000))
    files = with_template("{% if strftime_now('%S') == '59' %}{{ raise_exception('late') }}{% endif %}" + FULL)
    said = profiled(files)
    late = False

    def clock() -> datetime:
        return datetime(2026, 1, 1, 0, 0, 59 if late and next(days) > 3 else 1, tzinfo=UTC)

    cases = []
    for case in check_template(checked_model(files, said, clock=clock)):
        cases.append(case)
        late = late or case.name == "bos"
    assert [(case.name, case.status) for case in cases if case.status == "failed"] == [("twice", "failed")]
