"""The test `stop`: passed by every family's template, and failed by stop tokens that do not end what they should."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.real_templates import real_template
from support.subjects import FAMILIES, family_files, family_subject, own_template, real_templates, subject_of, with_profile

from engines.base import Chunk
from gateway.answer import AnswerReader
from gateway.checks.base import Case, Subject
from gateway.checks.stop import check_stop
from gateway.prompt.profile import StopToken
from gateway.request import Delta


def cases(subject: Subject) -> dict[str, Case]:
    made = [*check_stop(subject)]
    assert {case.test for case in made} == {"stop"}
    assert len({case.name for case in made}) == len(made)
    assert all(bool(case.diagnosis) == (case.status != "passed") == bool(case.fix) for case in made)
    return {case.name: case for case in made}


def failed(subject: Subject) -> dict[str, Case]:
    return {name: case for name, case in cases(subject).items() if case.status == "failed"}


def stopping_at(subject: Subject, *tokens: StopToken) -> Subject:
    return with_profile(subject, stop=tokens)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_ends_its_turns(family: str) -> None:
    subject = family_subject(family)
    found = cases(subject)
    assert [name for name, case in found.items() if case.status != "passed"] == (["turn end"] if family == "gpt_oss" else [])
    assert {f"one token: {token.text} ({token.id})" for token in subject.profile.stop} <= found.keys()
    assert {f"an answer ends at {token.text}" for token in subject.profile.stop} <= found.keys()
    assert ("call end" in found) == (subject.prompter.capabilities.tools == subject.prompter.capabilities.tool_calls == "yes")


@pytest.mark.no_cover  # as `needs_real` says
@pytest.mark.parametrize(("family", "real"), [each for each in real_templates() if each[1] != "Kimi-K2-Thinking"])
def test_every_real_template_ends_its_turns(family: str, real: str) -> None:
    assert not failed(family_subject(family, real_template(real)))


def test_the_end_of_harmony_s_messages_does_not_tell_the_end_of_a_turn() -> None:
    case = cases(family_subject("gpt_oss"))["turn end"]
    assert case.status == "skipped"
    assert case.diagnosis.startswith("The template writes '<|end|><|start|>user<|message|>' after an answer")


def base_model_s_end() -> Subject:
    """ChatML in a model whose files declare only the end of its texts."""
    files = replace(family_files("qwen2_5"), stop_ids=frozenset({0}))
    return subject_of("m", files)


def test_the_end_of_texts_for_the_end_of_turns() -> None:
    subject = base_model_s_end()
    assert not failed(subject)
    found = failed(stopping_at(subject, StopToken(0, "<|endoftext|>")))
    assert [*found] == ["turn end"]
    assert found["turn end"].diagnosis == (
        "The template ends the model's turn with <|im_end|> (id 2), which is not among the stop tokens <|endoftext|>: "
        "answers would run on into the next turn."
    )
    assert found["turn end"].fix == 'Add `{id: 2, text: "<|im_end|>"}` under `stop` in the profile.'


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (StopToken(2, "<|im_end|>\n"), "is 2 tokens to this vocabulary ('<|im_end|>' '\\n'), not the one token 2"),
        (StopToken(2, "</turn>"), "is 7 tokens to this vocabulary ('<' '/' 't' 'u' 'r' 'n' '>'), not the one token 2"),
        (StopToken(2, "<|im_start|>"), "entry 2 is called '<|im_start|>', but that token is '<|im_end|>'; '<|im_start|>' is 1"),
        (StopToken(100_000, "<|im_end|>"), "The stop token 100000 (<|im_end|>) is none of the vocabulary's"),
    ],
)
def test_an_entry_that_is_not_one_token(token: StopToken, words: str) -> None:
    subject = family_subject("qwen2_5")
    case = failed(stopping_at(subject, *subject.profile.stop, token))[f"one token: {token.text} ({token.id})"]
    assert words in case.diagnosis
    assert case.fix == "Write one token's id with its own text under `stop` in the profile."


def test_a_token_of_ordinary_text() -> None:
    subject = family_subject("qwen2_5")
    (word,) = subject.prompter.tokenizer.encode(" the")
    found = failed(stopping_at(subject, *subject.profile.stop, StopToken(word, " the")))
    case = found.pop(f"one token:  the ({word})")
    assert not found
    assert case.diagnosis == f"The stop token ' the' (id {word}) is ordinary text: answers would end wherever it stands."
    assert case.fix == "Take it out under `stop` in the profile."


def test_an_end_token_that_the_files_declare_may_be_any() -> None:
    files = family_files("qwen2_5")
    (word,) = files.tokenizer.encode(" the")
    assert not failed(subject_of("m", replace(files, stop_ids=files.stop_ids | {word})))


@pytest.mark.parametrize(
    ("old", "new", "prompt", "wrote"),
    [
        ("if add_generation_prompt", "if false", "checkquestionmark<|im_end|>\n", "<|im_start|>assistant\n"),
        ("'<|im_start|>assistant", "'<|im_start|>user", "<|im_start|>user\n", "assistant\n"),
    ],
)
def test_a_prompt_that_does_not_begin_the_model_s_turn(old: str, new: str, prompt: str, wrote: str) -> None:
    source = own_template("chatml")
    assert old in source
    files = family_files("chatml", source.replace(old, new))
    case = failed(subject_of("m", files, "plain"))["an answer"]
    assert repr(prompt)[1:-1] in case.diagnosis
    assert case.diagnosis.endswith(f"which is read as {f'{wrote}checkvaluemark'!r}.")
    assert "add_generation_prompt" in case.fix


def test_no_stop_token_at_all() -> None:
    found = failed(stopping_at(family_subject("qwen2_5")))
    assert found["stop tokens"].diagnosis == "The profile names no stop token."
    assert found["turn end"].diagnosis.endswith("not among the stop tokens none: answers would run on into the next turn.")


def test_a_declared_end_token_that_is_left_out() -> None:
    subject = base_model_s_end()
    found = failed(stopping_at(subject, StopToken(2, "<|im_end|>")))
    assert [*found] == ["declared end tokens"]
    assert "declare <|endoftext|> (id 0) as an end token, which is not among" in found["declared end tokens"].diagnosis


def test_a_stop_token_within_a_turn() -> None:
    subject = family_subject("gpt_oss")
    token = subject.prompter.tokenizer.special_ids["<|end|>"]
    found = failed(stopping_at(subject, *subject.profile.stop, StopToken(token, "<|end|>")))
    assert [*found] == ["within a turn"]
    assert (
        f"The stop token <|end|> (id {token}) stands within a turn, before '<|start|>assistant to="
        in found["within a turn"].diagnosis
    )


def test_a_family_that_ends_calls_by_a_token_of_its_own() -> None:
    subject = family_subject("gpt_oss")
    left = tuple(token for token in subject.profile.stop if token.text != "<|call|>")
    found = failed(with_profile(subject, stop=left))
    assert [*found] == ["declared end tokens", "call end"]
    assert "writes '\"}<|call|><|start|>functions.check_lookup" in found["call end"].diagnosis
    assert "the model would go on and write the result itself" in found["call end"].diagnosis


def test_a_template_that_writes_no_answer() -> None:
    refusing = "{%- for m in messages if m.role == 'assistant' %}{{ raise_exception('No answers.') }}{% endfor -%}"
    case = failed(family_subject("chatml", refusing + own_template("chatml")))["turn end"]
    assert "No answers." in case.diagnosis


def test_an_answer_that_runs_on_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    own = AnswerReader.read

    def deaf(reader: AnswerReader, chunk: Chunk) -> list[Delta]:
        return own(reader, Chunk(text=chunk.text, ids=chunk.ids, tokens=chunk.tokens))

    monkeypatch.setattr(AnswerReader, "read", deaf)
    found = failed(family_subject("qwen2_5"))
    assert [*found] == ["an answer ends at <|im_end|>", "<|im_end|> in other tokens is text"]
    assert "is read as 'checkvaluemarkcheckjunkmark'" in found["an answer ends at <|im_end|>"].diagnosis


def test_a_stop_token_that_is_counted_where_only_its_text_is_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    own = AnswerReader.read

    def counting(reader: AnswerReader, chunk: Chunk) -> list[Delta]:
        deltas: Sequence[Delta] = own(reader, chunk)
        reader.tally.failures["stop_leak"] += chunk.stop_id is not None
        return [*deltas]

    monkeypatch.setattr(AnswerReader, "read", counting)
    found = failed(family_subject("qwen2_5"))
    assert (
        found["<|im_end|> in other tokens is text"].diagnosis == "A stop token that ends an answer is counted as one within it."
    )
