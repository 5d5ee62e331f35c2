from pathlib import Path

import pytest
from support.gguf_writer import Field, Typed, gguf
from support.llamacpp import smollm2_file
from support.sentencepiece import SMALL
from support.vocabulary import tokenizer_fields

from gateway.errors import ModelFileError
from gateway.prompt.source import read_model


def file(folder: Path, **changes: Field | None) -> Path:
    fields: dict[str, Field | None] = {"general.architecture": "tiny", "tiny.context_length": 256}
    fields |= tokenizer_fields(template="{{ messages }}")
    fields |= {key.replace("__", "."): value for key, value in changes.items()}
    path = folder / "model.gguf"
    path.write_bytes(gguf({key: value for key, value in fields.items() if value is not None}))
    return path


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
        ({"tiny__context_length": 0}, "tiny.context_length is '0', not a number of tokens from 1"),
        ({"tiny__context_length": Typed(5, -3)}, "tiny.context_length is '-3', not a number"),
        ({"tiny__context_length": "many"}, "tiny.context_length is 'many', not a number"),
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


def test_what_a_gguf_file_contradicts_itself_in(tmp_path: Path) -> None:
    assert read_model(file(tmp_path)).conflicts == ()
    files = read_model(file(tmp_path, tokenizer__ggml__eot_token_id=20, tiny__vocab_size=200))
    assert files.conflicts == (
        f"The end token {files.tokenizer.text_of(20)!r} is not marked as a special one: where a prompt has its text, that is its "
        "letters.",
        "The model has 200 tokens, its vocabulary 277: it cannot read the last ones.",
    )


def test_two_default_templates_of_a_gguf_file(tmp_path: Path) -> None:
    assert read_model(file(tmp_path, tokenizer__chat_template=None, tokenizer__chat_template__default="D")).templates == {
        "default": "D"
    }
    assert read_model(file(tmp_path, tokenizer__chat_template__default="{{ messages }}")).conflicts == ()
    files = read_model(file(tmp_path, tokenizer__chat_template__default="D"))
    assert files.templates == {"default": "{{ messages }}"}
    assert files.conflicts == (
        "tokenizer.chat_template.default is another chat template than tokenizer.chat_template, which is followed.",
    )


def test_the_digest_tells_what_is_rendered(tmp_path: Path) -> None:
    same = read_model(file(tmp_path)).digest()
    assert read_model(file(tmp_path, tiny__context_length=99, general__name="x")).digest() == same
    changes: list[dict[str, Field | None]] = [
        {"tokenizer__chat_template": "T"},
        {"tokenizer__chat_template__tool_use": "T"},
        {"tokenizer__ggml__bos_token_id": 0},
        {"tokenizer__ggml__pre": "llama-bpe"},
        {"tokenizer__ggml__merges": ["t h"]},
    ]
    digests = [read_model(file(tmp_path, **change)).digest() for change in changes]
    assert len({same, *digests}) == 1 + len(changes)


def test_a_gguf_file_of_sentencepiece(tmp_path: Path) -> None:
    texts, scores, kinds = (list(column) for column in zip(*SMALL, strict=True))
    names: dict[str, Field | None] = {"model": "llama", "pre": "default", "tokens": texts, "scores": Typed(9, scores, 6)}
    names |= {"token_type": kinds, "merges": None, "bos_token_id": 1, "add_bos_token": None, "eot_token_id": None}
    files = read_model(file(tmp_path, **{f"tokenizer__ggml__{name}": value for name, value in names.items()}))
    assert files.bos == "<s>"
    assert files.stop_ids == {2}
    assert files.tokenizer.encode("<s>ab") == (1, texts.index("▁ab"))
