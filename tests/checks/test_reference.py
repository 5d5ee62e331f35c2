"""transformers as the reference: real vocabularies and templates pass, and what it cannot read is said."""

import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.checked import checked_model, with_template
from support.llamacpp import smollm2_file
from support.real_templates import real_template
from support.real_vocabularies import deepseek_vocabulary, model_directory, qwen_vocabulary
from support.sentencepiece import model_file
from support.subjects import own_template
from support.vocabulary import fixed_clock, model_files, template_text

from gateway.checks.base import Case, Subject
from gateway.checks.reasoning import check_reasoning
from gateway.checks.reference import transformers_reference
from gateway.checks.template import check_template
from gateway.errors import BadRequest
from gateway.prompt.model_files import DEFAULT
from gateway.prompt.renderer import Draft
from gateway.prompt.source import read_model

NOWHERE = Path("/no/such/directory")
QWEN = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
DEEPSEEK = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}
MISTRAL = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> "
    "[IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT] [CALL_ID] [ARGS] "
    "[THINK] [/THINK]"
)
Vocabulary = tuple[Callable[[], Path], Mapping[str, str]]
VOCABULARIES: Mapping[str, Vocabulary] = {
    "qwen3": (partial(qwen_vocabulary, "qwen3"), QWEN),
    "qwen35": (partial(qwen_vocabulary, "qwen35"), QWEN),
    "deepseek": (deepseek_vocabulary, DEEPSEEK),
}


def directory(folder: Path, vocabulary: str, template: str) -> Path:
    file, specials = VOCABULARIES[vocabulary]
    return model_directory(folder, file(), specials, template)


def tekken_directory(folder: Path, version: str, template: str) -> Path:
    spec = find_spec("mistral_common")
    assert spec is not None
    assert spec.submodule_search_locations
    data = Path(spec.submodule_search_locations[0]) / "data"
    tekken = json.loads((data / "tekken_240911.json").read_text())
    tekken["config"]["version"] = version
    tekken["special_tokens"] = [
        {"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(MISTRAL.split())
    ]
    (folder / "tekken.json").write_text(json.dumps(tekken))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (folder / "chat_template.jinja").write_text(template)
    return folder


def checked(source: Path, form: str | None = None) -> tuple[Subject, list[Case]]:
    files = read_model(source)
    subject = checked_model(files, form=form, reference=transformers_reference(source, files, fixed_clock))
    return subject, [*check_template(subject), *check_reasoning(subject)]


def draft(**variables: object) -> Draft:
    said = {"messages": [{"role": "user", "content": "Hello"}], "tools": None, "documents": None, "add_generation_prompt": True}
    return Draft(DEFAULT, said | variables)


@pytest.mark.no_cover  # as `needs_real` says
@pytest.mark.parametrize(
    ("vocabulary", "template", "form"),
    [
        ("qwen3", "Qwen-Qwen3-0.6B", "hermes"),
        ("qwen3", "Qwen3-Coder", "qwen3_coder"),
        ("qwen35", "Qwen3.5-4B", "qwen35"),
        ("deepseek", "deepseek-ai-DeepSeek-V3.1", "deepseek_v31"),
        ("deepseek", "deepseek-ai-DeepSeek-V3.2", "deepseek_v32"),
        ("deepseek", "deepseek-ai-DeepSeek-V4", "deepseek_v4"),
    ],
)
def test_real_models_pass_with_text_and_ids(vocabulary: str, template: str, form: str, tmp_path: Path) -> None:
    subject, cases = checked(directory(tmp_path, vocabulary, real_template(template)))
    assert subject.format.name == form
    assert [case for case in cases if case.status != "passed"] == []
    assert sum(case.name.endswith(" as transformers") for case in cases) >= 20
    assert len(cases) >= 55


@pytest.mark.no_cover  # likewise
@pytest.mark.parametrize(
    ("version", "template", "form"),
    [
        ("v13", "mistralai-Ministral-3-14B-Reasoning-2512", "mistral_v13"),
        ("v11", "Mistral-Small-3.2-24B-Instruct-2506", "mistral_v13"),
    ],
)
def test_mistral_s_own_vocabulary_passes(version: str, template: str, form: str, tmp_path: Path) -> None:
    subject, cases = checked(tekken_directory(tmp_path, version, real_template(template)))
    assert subject.format.name == form
    assert [case for case in cases if case.status == "failed"] == []
    assert "reference ids" not in {case.name for case in cases}


def test_smollm2_passes_and_says_that_ids_were_not_compared() -> None:
    _, cases = checked(smollm2_file())
    assert [(case.name, case.status) for case in cases if case.status != "passed"] == [("reference ids", "skipped")]


def test_a_chatml_template_on_a_vocabulary_without_its_markers(tmp_path: Path) -> None:
    _, cases = checked(directory(tmp_path, "deepseek", real_template("trl-qwen3")))
    (case,) = (case for case in cases if case.status == "failed")
    assert (case.test, case.name) == ("template", "markers")
    assert "<|im_end|> is 6 tokens, <|im_start|> is 6 tokens" in case.diagnosis


def test_the_reference_s_ids_are_its_own_tokenizer_s(tmp_path: Path) -> None:
    source = directory(tmp_path, "qwen3", template_text("full"))
    files = read_model(source)
    reference = transformers_reference(source, files, fixed_clock)
    assert reference is not None
    assert reference.without_ids == ""
    ids = reference.ids(draft())
    assert ids is not None
    assert "".join(map(files.tokenizer.text_of, ids)) == reference.text(draft())


def test_a_vocabulary_of_other_merges_fails_by_its_ids(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "other").mkdir()
    own, other = (
        directory(tmp_path / name, kind, template_text("full")) for name, kind in (("own", "qwen3"), ("other", "qwen35"))
    )
    files = read_model(own)
    subject = checked_model(files, form="hermes", reference=transformers_reference(other, files, fixed_clock))
    failed = [case for case in check_template(subject) if case.status == "failed"]
    assert "user as transformers" in {case.name for case in failed}
    assert all("the token ids part at" in case.diagnosis for case in failed)


def test_a_directory_that_transformers_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model_file())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>"}')
    reference = transformers_reference(tmp_path, model_files("full"), fixed_clock)
    assert reference is not None
    assert reference.without_ids.startswith("transformers cannot read the model's tokenizer: ")
    assert reference.ids(draft()) is None
    assert "Hello" in reference.text(draft())


def test_code_of_a_repository_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"})
    )
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\nclass Evil: pass\n")
    reference = transformers_reference(tmp_path, model_files("full"), fixed_clock)
    assert reference is not None
    assert reference.without_ids
    assert not (tmp_path / "run").exists()


def test_both_sides_write_the_same_date() -> None:
    files = with_template("{{ strftime_now('%d %B %Y') }}" + template_text("full"))
    for moment in (fixed_clock(), datetime(2031, 1, 2, tzinfo=UTC)):
        reference = transformers_reference(NOWHERE, files, lambda moment=moment: moment)  # type: ignore[misc]  # a default only
        assert reference is not None
        assert reference.text(draft()).startswith(moment.strftime("%d %B %Y<|im_start|>"))


def test_a_template_that_refuses_is_a_bad_request() -> None:
    reference = transformers_reference(NOWHERE, with_template("{{ raise_exception('not so') }}"), fixed_clock)
    assert reference is not None
    with pytest.raises(BadRequest, match=r"transformers \S+ does not render this: not so"):
        reference.text(draft())


def test_a_continued_message_ends_where_its_content_does() -> None:
    reference = transformers_reference(NOWHERE, with_template(own_template("qwen3")), fixed_clock)
    assert reference is not None
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "It begins"}]
    made = Draft(DEFAULT, {**draft().variables, "messages": messages, "add_generation_prompt": False}, continues=True)
    assert reference.text(made).endswith("It begins")


def test_without_transformers_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert transformers_reference(NOWHERE, model_files("full"), fixed_clock) is None
