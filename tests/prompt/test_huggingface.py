"""Directories of a Hugging Face model: which file is followed, and what is said where they contradict each other."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.sentencepiece import SMALL, model_file
from support.tekken import NAMES, tekken_file
from support.vocabulary import byte_alphabet, fixed_clock
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from gateway.errors import ModelFileError
from gateway.prompt.model_files import ModelFiles
from gateway.prompt.renderer import Renderer
from gateway.prompt.source import read_model


def directory(folder: Path, files: dict[str, Any], *, bos_rule: bool = False) -> Path:
    backend = Tokenizer(models.BPE(vocab={character: number for number, character in enumerate(byte_alphabet())}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<end>", "<eot>"])  # 256..259
    if bos_rule:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    (folder / "tokenizer.json").write_text(backend.to_str())
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


SETTINGS = {"chat_template": "T", "eos_token": "</s>", "bos_token": {"content": "<s>", "lstrip": False}, "pad_token": None}


def read(folder: Path, *, bos_rule: bool = False, **files: Any) -> ModelFiles:
    named = {name.replace("__", "/") + (".jinja" if name.endswith("template") or "__" in name else ".json"): content
             for name, content in files.items()}  # fmt: skip
    return read_model(directory(folder, named, bos_rule=bos_rule))


def test_a_directory(tmp_path: Path) -> None:
    files = read(
        tmp_path,
        tokenizer_config=SETTINGS,
        config={"eos_token_id": 258, "max_position_embeddings": 4096},
        generation_config={"eos_token_id": [257, 259]},
    )
    assert files.templates == {"default": "T"}
    assert files.stop_ids == {257, 258, 259}
    assert files.context_tokens == 4096
    assert files.bos is None
    assert files.specials == {"eos_token": "</s>", "bos_token": "<s>"}


def test_where_a_directory_s_templates_come_from(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "U"}]
    assert read(tmp_path, tokenizer_config=SETTINGS | {"chat_template": named}).templates == {"default": "D", "tool_use": "U"}
    files = read(tmp_path, tokenizer_config=SETTINGS, chat_template="F", additional_chat_templates__rag="R")
    assert files.templates == {"default": "F", "rag": "R"}


def test_settings_of_a_model_within_a_model(tmp_path: Path) -> None:
    inner = {"text_config": {"eos_token_id": 258, "max_position_embeddings": 77}}
    files = read(tmp_path, tokenizer_config={"chat_template": "T"}, config=inner)
    assert files.stop_ids == {258}
    assert files.context_tokens == 77
    own = {"eos_token_id": None, "max_position_embeddings": None} | inner
    files = read(tmp_path, tokenizer_config={"chat_template": "T"}, config=own)
    assert (files.stop_ids, files.context_tokens, files.conflicts) == (frozenset({258}), 77, ())


def test_a_model_and_the_model_within_it_may_differ(tmp_path: Path) -> None:
    inner = {"eos_token_id": 258, "max_position_embeddings": 77, "vocab_size": 260}
    config = {"eos_token_id": 257, "max_position_embeddings": 99, "vocab_size": 260, "text_config": inner}
    files = read(tmp_path, tokenizer_config=SETTINGS, config=config)
    assert (files.stop_ids, files.context_tokens) == (frozenset({257, 258}), 99)
    assert files.conflicts == (
        "config.json's text_config has '77' for max_position_embeddings, config.json '99', which is followed.",
        "The files name different end tokens, each of which ends an answer: config.json '</s>'; config.json's text_config "
        "'<end>'; tokenizer_config.json '</s>'.",
    )


def test_files_hold_what_python_writes_beyond_json(tmp_path: Path) -> None:
    config = '{"time_step_limit": [0.0, Infinity], "router": NaN, "max_position_embeddings": 77}'
    assert read(tmp_path, tokenizer_config=SETTINGS, config=config).context_tokens == 77


@pytest.mark.parametrize(
    ("changes", "bos_rule", "bos"),
    [
        ({}, False, None),
        ({}, True, "<s>"),
        ({"add_bos_token": True}, False, "<s>"),
        ({"add_bos_token": False}, True, None),
        ({"bos_token": None}, True, None),
    ],
)
def test_whether_a_directory_wants_a_bos(tmp_path: Path, changes: dict[str, Any], bos_rule: bool, bos: str | None) -> None:
    assert read(tmp_path, bos_rule=bos_rule, tokenizer_config=SETTINGS | changes).bos == bos


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "has no chat template"),
        ({"tokenizer_config": {"chat_template": [{"name": "other", "template": "x"}]}}, "has no chat template"),
        ({"tokenizer_config": {"chat_template": ["x"]}}, "something else than a template, or templates"),
        ({"tokenizer_config": {"chat_template": 5}}, "chat_template in tokenizer_config.json is something else than a template"),
        ({"tokenizer_config": {"chat_template": [{"name": "default"}]}}, "something else than a template, or templates"),
        ({"tokenizer_config": SETTINGS, "chat_template": ""}, "no chat template (chat_template.jinja is empty)"),
        *(
            (
                {"tokenizer_config": SETTINGS, "config": {"max_position_embeddings": value}},
                f"is '{value}', not a number of tokens",
            )
            for value in (True, 0, -5, "4096", 4096.0, 10**12, [4096], float("inf"))
        ),
        (
            {"tokenizer_config": SETTINGS, "config": {"text_config": {"max_position_embeddings": -1}}},
            "config.json is '-1', not a",
        ),
        ({"tokenizer_config": {"chat_template": "T", "eos_token": ["</s>"]}}, "tokenizer_config.json: eos_token is not a text"),
        ({"tokenizer_config": SETTINGS, "special_tokens_map": {"pad_token": 3}}, "special_tokens_map.json: pad_token is not a"),
        ({"tokenizer_config": SETTINGS | {"added_tokens_decoder": []}}, "added_tokens_decoder is not an object"),
        ({"tokenizer_config": SETTINGS | {"added_tokens_decoder": {"9" * 5_000: "x"}}}, "which is not an id with a text"),
        ({"tokenizer_config": SETTINGS, "added_tokens": {"<x>": -5}}, "'<x>' has no id"),
        ({"tokenizer_config": {"chat_template": "T"}}, "name no end token"),
        ({"tokenizer_config": SETTINGS | {"eos_token": "<nowhere>"}}, "'<nowhere>', which the tokenizer does not have"),
        (
            {"tokenizer_config": SETTINGS, "generation_config": {"eos_token_id": [260]}},
            "'260' is not one of the vocabulary's 260",
        ),
        ({"tokenizer_config": SETTINGS, "config": {"eos_token_id": True}}, "'True' is not one"),
        ({"tokenizer_config": SETTINGS, "config": []}, "config.json does not hold a JSON object"),
        ({"tokenizer_config": "{"}, "tokenizer_config.json: not valid JSON"),
        ({"tokenizer_config": {"chat_template": "T", "add_bos_token": True, "eos_token": "</s>"}}, "do not say which"),
    ],
)
def test_a_directory_that_cannot_be_spoken_to(tmp_path: Path, files: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read(tmp_path, **files)
    assert says in str(caught.value)


def test_files_that_are_missing_or_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = directory(tmp_path, {"tokenizer_config.json": SETTINGS})
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelFileError, match="jinja is not UTF-8"):
        read_model(folder)
    (folder / "chat_template.jinja").unlink()
    monkeypatch.setattr("gateway.prompt.huggingface.MAX_FILE_BYTES", 100)
    with pytest.raises(ModelFileError, match="larger than 100 bytes"):
        read_model(folder)
    monkeypatch.undo()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match="is missing"):
        read_model(folder)


def conflicts(folder: Path, **files: Any) -> list[str]:
    base = {"tokenizer_config": SETTINGS}
    return list(read(folder, **(base | files)).conflicts)


def test_files_that_agree_are_not_mentioned(tmp_path: Path) -> None:
    config = {"eos_token_id": 257, "bos_token_id": 256, "vocab_size": 260}
    assert conflicts(tmp_path, chat_template="T", config=config, generation_config={"eos_token_id": [257, 259]}) == []


def test_two_templates(tmp_path: Path) -> None:
    said = conflicts(tmp_path, chat_template="F")
    assert said == ["tokenizer_config.json has another chat template 'default' than chat_template.jinja, which is followed."]


def test_the_processor_s_template_is_the_last(tmp_path: Path) -> None:
    folder = directory(tmp_path, {"tokenizer_config.json": SETTINGS, "chat_template.json": {"chat_template": "P"}})
    files = read_model(folder)
    assert files.templates == {"default": "T"}
    assert files.conflicts == (
        "chat_template.json has another chat template 'default' than tokenizer_config.json, which is followed.",
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS | {"chat_template": None}))
    assert read_model(folder).templates == {"default": "P"}


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.json"])
@pytest.mark.parametrize(
    "named",
    [
        {"default": "D", "tool_use": "U"},
        [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "U"}],
    ],
    ids=["object", "list"],
)
def test_templates_by_name(tmp_path: Path, name: str, named: object) -> None:
    settings = SETTINGS | {"chat_template": None}
    folder = directory(tmp_path, {"tokenizer_config.json": settings} | {name: settings | {"chat_template": named}})
    assert read_model(folder).templates == {"default": "D", "tool_use": "U"}


def test_two_templates_of_one_name(tmp_path: Path) -> None:
    named = [{"name": "default", "template": each} for each in "AB"]
    files = read(tmp_path, tokenizer_config=SETTINGS | {"chat_template": named})
    assert files.templates == {"default": "B"}
    assert files.conflicts == ("tokenizer_config.json has two chat templates 'default', the last of which is followed.",)


def test_an_additional_template_wins_over_its_name_elsewhere(tmp_path: Path) -> None:
    named = [{"name": name, "template": name} for name in ("default", "tool_use")]
    settings = SETTINGS | {"chat_template": named}
    files = read(tmp_path, tokenizer_config=settings, additional_chat_templates__tool_use="R")
    assert files.templates == {"default": "default", "tool_use": "R"}
    assert files.conflicts == (
        "tokenizer_config.json has another chat template 'tool_use' than additional_chat_templates/tool_use.jinja, which is "
        "followed.",
    )
    files = read(tmp_path, tokenizer_config=SETTINGS, chat_template="T", additional_chat_templates__default="R")
    assert files.templates == {"default": "R", "tool_use": "R"}
    assert files.conflicts == tuple(
        f"{file} has another chat template 'default' than additional_chat_templates/default.jinja, which is followed."
        for file in ("chat_template.jinja", "tokenizer_config.json")
    )


def test_a_named_template_that_no_one_uses(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "F"}, {"name": "tool_use", "template": "U"}]
    files = read(tmp_path, tokenizer_config=SETTINGS | {"chat_template": named}, chat_template="F")
    assert files.templates == {"default": "F"}
    assert files.conflicts == (
        "tokenizer_config.json has a chat template 'tool_use' that is not used: chat_template.jinja is followed, which has none "
        "of this name.",
    )


def test_end_tokens_that_differ_all_end_an_answer(tmp_path: Path) -> None:
    files = read(
        tmp_path, tokenizer_config=SETTINGS, config={"eos_token_id": 258}, generation_config={"eos_token_id": [258, 259]}
    )
    assert files.stop_ids == {257, 258, 259}
    assert files.conflicts == (
        "The files name different end tokens, each of which ends an answer: generation_config.json '<end>', '<eot>'; config.json "
        "'<end>'; tokenizer_config.json '</s>'.",
    )


def test_a_model_with_fewer_tokens_than_its_vocabulary_and_another_bos(tmp_path: Path) -> None:
    assert conflicts(tmp_path, config={"text_config": {"vocab_size": 200, "bos_token_id": 7}}) == [
        "The BOS token is 7 in config.json, but the tokenizer's is '<s>', which is 256.",
        "By config.json the model has 200 tokens, its vocabulary 260: it cannot read the last ones.",
    ]


def test_added_tokens_that_the_vocabulary_has_otherwise(tmp_path: Path) -> None:
    decoder = {"256": {"content": "<s>"}, "258": {"content": "<other>"}, "300": "<new>"}
    assert conflicts(tmp_path, tokenizer_config=SETTINGS | {"added_tokens_decoder": decoder}, added_tokens={"<end>": 258}) == [
        "tokenizer_config.json or added_tokens.json give '<other>' the id 258, which the tokenizer does not (and so for 1 more "
        "tokens): the tokenizer is followed."
    ]


def test_older_files_name_special_tokens(tmp_path: Path) -> None:
    files = read(tmp_path, tokenizer_config={"chat_template": "T"}, special_tokens_map={"eos_token": {"content": "<eot>"}})
    assert files.stop_ids == {259}


def test_older_files_that_name_other_special_tokens(tmp_path: Path) -> None:
    older = {"eos_token": {"content": "<eot>"}, "bos_token": "<s>", "pad_token": "</s>"}
    files = read(tmp_path, tokenizer_config=SETTINGS, special_tokens_map=older)
    assert files.specials == {"eos_token": "</s>", "bos_token": "<s>"}
    assert files.conflicts == (
        "special_tokens_map.json has '<eot>' for eos_token, tokenizer_config.json '</s>', which is followed.",
        "special_tokens_map.json has '</s>' for pad_token, tokenizer_config.json none, which is followed.",
    )


def test_another_bos_where_answers_are_configured(tmp_path: Path) -> None:
    assert conflicts(tmp_path, generation_config={"bos_token_id": 7}) == [
        "The BOS token is 7 in generation_config.json, but the tokenizer's is '<s>', which is 256."
    ]


def test_a_bos_that_the_template_does_not_write_is_said(tmp_path: Path) -> None:
    settings = SETTINGS | {"add_bos_token": True}
    silent = read(tmp_path, tokenizer_config=settings)
    assert Renderer(silent, clock=fixed_clock).conflicts == (
        "The files want <s> before each prompt, but the chat template does not write it: it is left out.",
    )
    written = read(tmp_path, tokenizer_config=settings | {"chat_template": "{{ bos_token }}T"})
    assert Renderer(written, clock=fixed_clock).conflicts == ()


def bare(folder: Path, files: dict[str, Any]) -> Path:
    """A directory without tokenizer.json."""
    directory(folder, files)
    (folder / "tokenizer.json").unlink()
    return folder


def test_a_directory_with_a_tekken_file(tmp_path: Path) -> None:
    files = {"tokenizer_config.json": SETTINGS, "tekken.json": tekken_file()}
    assert read_model(directory(tmp_path, files)).conflicts == (
        "There is a tekken.json beside tokenizer.json, which is followed.",
    )
    found = read_model(bare(tmp_path, files))
    assert found.stop_ids == {2}
    assert found.tokenizer.encode("<s>the") == (1, 4 + 256 + 1)
    other = SETTINGS | {"added_tokens_decoder": {"1": "<s>", "2": "<other>", "1000": "<more>"}}
    assert read_model(bare(tmp_path, {"tokenizer_config.json": other, "tekken.json": tekken_file()})).conflicts == (
        "tokenizer_config.json or added_tokens.json give '<other>' the id 2, which the tokenizer does not (and so for 1 more "
        "tokens): the tokenizer is followed.",
    )
    unnamed = {key: value for key, value in tekken_file().items() if key != "special_tokens"}
    decoder = {"added_tokens_decoder": {str(token_id): {"content": text} for token_id, text in NAMES.items()}}
    assert read_model(bare(tmp_path, {"tokenizer_config.json": SETTINGS | decoder, "tekken.json": unnamed})).stop_ids == {2}


@pytest.mark.parametrize(
    ("settings", "ids"), [({}, ("▁a", "▁a")), ({"legacy": False}, ("▁a", "a")), ({"add_prefix_space": False}, ("a", "a"))]
)
def test_a_directory_with_a_sentencepiece_model(tmp_path: Path, settings: dict[str, Any], ids: tuple[str, str]) -> None:
    folder = bare(tmp_path, {"tokenizer_config.json": SETTINGS | settings, "added_tokens.json": {"<|im_end|>": len(SMALL)}})
    (folder / "tokenizer.model").write_bytes(model_file())
    found = read_model(folder).tokenizer
    expected = [found.id_of(text) for text in (ids[0], "<|im_end|>", ids[1])]
    assert list(found.encode("a<|im_end|>a")) == expected


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "has no tokenizer: tokenizer.json is missing, and so are"),
        ({"tokenizer.model": "?"}, "tokenizer.model cannot be read: it is cut off or damaged."),
        ({"tekken.json": {}}, "tekken.json has no config"),
        ({"added_tokens.json": {"<x>": "1"}}, "added_tokens.json: '<x>' has no id"),
        ({"tokenizer_config.json": SETTINGS | {"added_tokens_decoder": {"x": "<x>"}}}, "has 'x', which is not an id with a text"),
    ],
)
def test_a_directory_without_a_tokenizer_that_can_be_read(tmp_path: Path, files: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read_model(bare(tmp_path, {"tokenizer_config.json": SETTINGS} | files))
    assert says in str(caught.value)


def test_a_value_beyond_any_depth_is_refused(tmp_path: Path) -> None:
    for depth in (500, 900, 940, 980, 100_000):
        with pytest.raises(ModelFileError):
            read(tmp_path, tokenizer_config=SETTINGS, generation_config=f'{{"eos_token_id": {"[" * depth}{"]" * depth}}}')
