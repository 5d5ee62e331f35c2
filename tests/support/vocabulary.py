"""A small byte-level vocabulary and a model's files made of it, for tests that need no real model."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from support.gguf_writer import Field, Typed

from gateway.formats.base import CallSyntax
from gateway.prompt.gguf import Value
from gateway.prompt.gguf_source import from_metadata
from gateway.prompt.model_files import ModelFiles
from gateway.prompt.tokenizer import Tokenizer, from_gguf

TEMPLATES = Path(__file__).parent.parent / "data" / "templates"
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>")
DEFINED = ("<think>", "</think>", "<tool_call>", "</tool_call>")
MERGES = ("t h", "h e", "i n", "e r", "a n", "o n", "th e", "1 2", "- -", "\u0120 t", "\u0120 the", "\u0120 a")
WORDS = tuple(pair.replace(" ", "") for pair in MERGES)
SYNTAX = CallSyntax("<tool_call>\n", "\n</tool_call>", "\n", "name", "arguments")


def byte_alphabet() -> list[str]:
    """The characters of GPT-2's byte-level alphabet, in the order of the bytes."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return [chr(byte) if byte in printing else chr(0x100 + others.index(byte)) for byte in range(256)]


def tokenizer_fields(pre: str = "gpt-2", template: str | None = None, **changes: Field | None) -> dict[str, Field]:
    """GGUF fields of a tokenizer: special tokens first, then the bytes, then the words. A change to None leaves a key out."""
    tokens = [*CONTROL, *DEFINED, *byte_alphabet(), *WORDS]
    types = [3] * len(CONTROL) + [4] * len(DEFINED) + [1] * (len(tokens) - len(CONTROL) - len(DEFINED))
    fields: dict[str, Field | None] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": types,
        "merges": [*MERGES],
        "bos_token_id": 3,
        "eos_token_id": 2,
        "eot_token_id": 0,
        "unknown_token_id": 0,
        "add_bos_token": False,
    }
    named = {f"tokenizer.ggml.{key}": value for key, value in (fields | changes).items() if value is not None}
    return named if template is None else {**named, "tokenizer.chat_template": template}


def metadata(fields: Mapping[str, Field]) -> dict[str, Value]:
    """Fields as the reader would give them."""
    plain = {key: field.value if isinstance(field, Typed) else field for key, field in fields.items()}
    return {key: value if isinstance(value, int | float | str) else list(value) for key, value in plain.items()}


def template_text(name: str) -> str:
    """One of our own small templates."""
    return (TEMPLATES / f"{name}.jinja").read_text()


@cache
def small_tokenizer() -> Tokenizer:
    """The vocabulary of every model made of these fields."""
    return from_gguf(metadata(tokenizer_fields()))


def model_files(template: str, **changes: Field | None) -> ModelFiles:
    """A model that speaks with one of our own templates."""
    fields = tokenizer_fields("gpt-2", template_text(template), **changes)
    return from_metadata({"general.architecture": "tiny", "tiny.context_length": 256, **metadata(fields)})


def fixed_clock() -> datetime:
    """Always the same moment."""
    return datetime(2026, 3, 14, 15, 9, tzinfo=UTC)
