"""What a model's own files say about speaking to it: a GGUF file, or a Hugging Face directory.

Invariant: everything comes from the files, or `ModelFileError` says what is missing. Nothing is made up: a model without a chat
template is refused, never given another model's.
"""

import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.errors import ModelFileError, shown
from gateway.prompt import gguf
from gateway.prompt.pretokenize import pre_tokenizer
from gateway.prompt.tokenizer import Tokenizer, from_gguf, from_json
from gateway.wire import jsonio

DEFAULT = "default"
TOOL_USE = "tool_use"
MAX_FILE_BYTES = 256 * 1024 * 1024
_GGUF_SPECIALS: Mapping[str, str] = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding"}
_GGUF_STOPS = ("eos", "eot", "eom")
_SPECIALS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """`templates` are the chat templates by name, `default` always among them; `specials` the texts that templates know as
    `bos_token`, `eos_token` and so on; `stop_ids` the union of every declared end token. `bos`: the text that a prompt must begin
    with, where the model wants one. `context_tokens` is None where the files do not say.
    """

    templates: Mapping[str, str]
    tokenizer: Tokenizer
    specials: Mapping[str, str]
    stop_ids: frozenset[int]
    bos: str | None
    context_tokens: int | None


def read_model(path: Path) -> ModelFiles:
    """Reads a GGUF file or a model directory. Raises ModelFileError, which names the path."""
    try:
        return _directory(path) if path.is_dir() else _gguf_file(path)
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from None
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror or error}") from None


def _gguf_file(path: Path) -> ModelFiles:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise ModelFileError("The file is empty.")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer, memoryview(buffer) as view:
            metadata = gguf.read_metadata(view)
    return from_metadata(metadata)


def from_metadata(metadata: gguf.Metadata) -> ModelFiles:
    """What a GGUF file's metadata says. Raises ModelFileError."""
    templates = _gguf_templates(metadata)
    tokenizer = from_gguf(metadata)
    ids = {name: _gguf_id(metadata, key, tokenizer) for name, key in _GGUF_SPECIALS.items()}
    stops = [_gguf_id(metadata, key, tokenizer) for key in _GGUF_STOPS]
    specials = {f"{name}_token": tokenizer.text_of(token_id) for name, token_id in ids.items() if token_id is not None}
    wants_bos = gguf.get(metadata, "tokenizer.ggml.add_bos_token", bool)
    if wants_bos is None:
        wants_bos = pre_tokenizer(gguf.get(metadata, "tokenizer.ggml.pre", str)).bos
    family = gguf.get(metadata, "general.architecture", str)
    return ModelFiles(
        templates=templates,
        tokenizer=tokenizer,
        specials=specials,
        stop_ids=_stop_ids(stops, tokenizer),
        bos=_bos(wants_bos, specials),
        context_tokens=gguf.get(metadata, f"{family}.context_length", int),
    )


def _gguf_templates(metadata: gguf.Metadata) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    templates = {
        key.removeprefix(prefix + ".") if key != prefix else DEFAULT: gguf.get(metadata, key, str) or ""
        for key in metadata
        if key == prefix or key.startswith(prefix + ".")
    }
    return _with_default(templates, f"the GGUF file has no {prefix}")


def _gguf_id(metadata: gguf.Metadata, name: str, tokenizer: Tokenizer) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    token_id = gguf.get(metadata, key, int)
    if token_id is not None and not 0 <= token_id < tokenizer.vocab_size:
        raise ModelFileError(f"{key} is {token_id}, but the vocabulary has {tokenizer.vocab_size} tokens.")
    return token_id


def _directory(path: Path) -> ModelFiles:
    settings = _json(path / "tokenizer_config.json")
    config = _json(path / "config.json")
    generation = _json(path / "generation_config.json")
    templates = _hf_templates(path, settings)
    tokenizer = from_json(_bytes(path / "tokenizer.json", "the tokenizer"))
    specials = {name: text for name in _SPECIALS if (text := _token_text(settings.get(name))) is not None}
    inner = config.get("text_config")
    text_config = inner if isinstance(inner, dict) else {}
    declared = [source.get("eos_token_id") for source in (generation, config, text_config)]
    stops = [token_id for value in declared for token_id in (value if isinstance(value, list) else [value])]
    eos = specials.get("eos_token")
    context = config.get("max_position_embeddings", text_config.get("max_position_embeddings"))
    return ModelFiles(
        templates=templates,
        tokenizer=tokenizer,
        specials=specials,
        stop_ids=_stop_ids([*stops, _special_id(tokenizer, eos) if eos else None], tokenizer),
        bos=_bos(_hf_wants_bos(settings, specials, tokenizer), specials),
        context_tokens=context if isinstance(context, int) else None,
    )


def _hf_templates(path: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """The file wins over tokenizer_config.json, as it does in transformers."""
    templates: dict[str, str] = {}
    match settings.get("chat_template"):
        case str() as source:
            templates[DEFAULT] = source
        case list() as named:
            templates |= {entry["name"]: entry["template"] for entry in named if _is_named(entry)}
    file = path / "chat_template.jinja"
    if file.exists():
        templates[DEFAULT] = _text(file)
    templates |= {file.stem: _text(file) for file in sorted((path / "additional_chat_templates").glob("*.jinja"))}
    return _with_default(templates, "neither chat_template.jinja nor chat_template in tokenizer_config.json is there")


def _is_named(entry: object) -> bool:
    if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str):
        return True
    raise ModelFileError("chat_template in tokenizer_config.json is a list of something else than a name and a template each.")


def _with_default(templates: dict[str, str], missing: str) -> dict[str, str]:
    if not templates.get(DEFAULT):
        raise ModelFileError(
            f"The model has no chat template ({missing}). It is not an instruction-tuned model, or its template must be added: "
            "none is assumed."
        )
    return templates


def _hf_wants_bos(settings: Mapping[str, Any], specials: Mapping[str, str], tokenizer: Tokenizer) -> bool:
    declared = settings.get("add_bos_token")
    bos = specials.get("bos_token")
    if isinstance(declared, bool) or bos is None:
        return declared is True
    return tokenizer.adds_bos(_special_id(tokenizer, bos))


def _special_id(tokenizer: Tokenizer, text: str) -> int:
    token_id = tokenizer.id_of(text)
    if token_id is None:
        raise ModelFileError(f"tokenizer_config.json names the token {shown(text)}, which tokenizer.json does not have.")
    return token_id


def _bos(wanted: bool, specials: Mapping[str, str]) -> str | None:
    if wanted and "bos_token" not in specials:
        raise ModelFileError("The model wants a BOS token before each prompt, but its files do not say which.")
    return specials["bos_token"] if wanted else None


def _stop_ids(declared: Iterable[object], tokenizer: Tokenizer) -> frozenset[int]:
    ids: set[int] = set()
    for value in declared:
        if value is None:
            continue
        if type(value) is not int or not 0 <= value < tokenizer.vocab_size:
            raise ModelFileError(f"The end token {shown(str(value))} is not one of the vocabulary's {tokenizer.vocab_size} ids.")
        ids.add(value)
    if not ids:
        raise ModelFileError("The model's files name no end token: its answers would never stop.")
    return frozenset(ids)


def _token_text(value: object) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _bytes(file: Path, what: str) -> bytes:
    if not file.exists():
        raise ModelFileError(f"{file.name} ({what}) is missing.")
    if file.stat().st_size > MAX_FILE_BYTES:
        raise ModelFileError(f"{file.name} is larger than {MAX_FILE_BYTES} bytes.")
    return file.read_bytes()


def _text(file: Path) -> str:
    try:
        return _bytes(file, "the chat template").decode()
    except UnicodeDecodeError:
        raise ModelFileError(f"{file.name} is not UTF-8.") from None


def _json(file: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file."""
    if not file.exists():
        return {}
    try:
        value = jsonio.decode(_bytes(file, "settings"))
    except jsonio.JsonError as error:
        raise ModelFileError(f"{file.name}: {error.message}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{file.name} does not hold a JSON object.")
    return value
