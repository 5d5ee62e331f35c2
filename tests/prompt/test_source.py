import json
from pathlib import Path
from typing import Any

import pytest
from support.gguf_writer import Field, gguf
from support.llamacpp import smollm2_file
from support.vocabulary import byte_alphabet, tokenizer_fields
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from gateway.errors import ModelFileError
from gateway.prompt.source import ModelFiles, read_model


def file(folder: Path, **changes: Field | None) -> Path:
    fields: dict[str, Field | None] = {"general.architecture": "tiny", "tiny.context_length": 256}
    fields |= tokenizer_fields(template="{{ messages }}")
    fields |= {key.replace("__", "."): value for key, value in changes.items()}
    path = folder / "model.gguf"
    path.write_bytes(gguf({key: value for key, value in fields.items() if value is not None}))
    return path


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


def test_smollm2() -> None:
    files = read_model(smollm2_file())
    assert set(files.templates) == {"default"}
    assert "<|im_start|>" in files.templates["default"]
    assert files.stop_ids == {2}
    assert files.context_tokens == 8192
    assert files.bos is None
    assert files.specials == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    assert files.tokenizer.encode("<|im_start|>user\nTell<|im_end|>\n") == (1, 4093, 198, 31530, 2, 198)


def test_a_gguf_file(tmp_path: Path) -> None:
    files = read_model(file(tmp_path, tokenizer__chat_template__tool_use="tools", tokenizer__ggml__eom_token_id=4))
    assert files.templates == {"default": "{{ messages }}", "tool_use": "tools"}
    assert files.stop_ids == {0, 2, 4}
    assert files.context_tokens == 256
    assert files.bos is None
    assert files.specials["bos_token"] == "<s>"


@pytest.mark.parametrize(
    ("changes", "bos"),
    [
        ({"tokenizer__ggml__add_bos_token": True}, "<s>"),
        ({"tokenizer__ggml__add_bos_token": None}, None),
        ({"tokenizer__ggml__add_bos_token": None, "tokenizer__ggml__pre": "llama-bpe"}, "<s>"),
        ({"tokenizer__ggml__add_bos_token": False, "tokenizer__ggml__pre": "llama-bpe"}, None),
    ],
)
def test_whether_a_gguf_file_wants_a_bos(tmp_path: Path, changes: dict[str, Field | None], bos: str | None) -> None:
    assert read_model(file(tmp_path, **changes)).bos == bos


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tokenizer__chat_template": None}, "has no chat template"),
        ({"tokenizer__chat_template": ""}, "has no chat template"),
        ({"tokenizer__chat_template": 3}, "holds a int"),
        ({"tokenizer__ggml__eos_token_id": 9999}, "eos_token_id is 9999, but the vocabulary has 277"),
        ({"tokenizer__ggml__eos_token_id": None, "tokenizer__ggml__eot_token_id": None}, "name no end token"),
        ({"tokenizer__ggml__bos_token_id": None, "tokenizer__ggml__add_bos_token": True}, "do not say which"),
        ({"tokenizer__ggml__model": "bert"}, "'gpt2') and SentencePiece ('llama')"),
        ({"general__name": "Phi-3 mini"}, "drops blanks after special tokens"),
    ],
)
def test_a_gguf_file_that_cannot_be_spoken_to(tmp_path: Path, changes: dict[str, Field | None], says: str) -> None:
    path = file(tmp_path, **changes)
    with pytest.raises(ModelFileError) as caught:
        read_model(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert says in str(caught.value)


def test_paths_that_hold_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "other.bin").write_bytes(b"PK\x03\x04")
    (tmp_path / "folder").mkdir()
    for name, says in {
        "missing.gguf": "No such file",
        "empty.gguf": "The file is empty",
        "other.bin": "does not begin with 'GGUF'",
        "folder": "has no chat template",
    }.items():
        with pytest.raises(ModelFileError, match=says):
            read_model(tmp_path / name)


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
    assert read(tmp_path, tokenizer_config=SETTINGS, config={"max_position_embeddings": "many"}).context_tokens is None


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
        ({"tokenizer_config": {"chat_template": ["x"]}}, "something else than a name and a template"),
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
