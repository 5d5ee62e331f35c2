"""What the files of a Hugging Face directory say about speaking to its model.

Where several say the same thing, one is followed, as transformers does; where they contradict each other, that is said.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.errors import ModelFileError, shown
from gateway.prompt.model_files import DEFAULT, ModelFiles, bos_text, stop_ids, with_default
from gateway.prompt.sentencepiece import Prefix
from gateway.prompt.sentencepiece_file import read_pieces
from gateway.prompt.tokenizer import Tokenizer, from_json, from_pieces, from_tekken
from gateway.wire import jsonio

MAX_FILE_BYTES = 256 * 1024 * 1024
_SPECIALS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_SETTINGS = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
_PROCESSOR_TEMPLATE = "chat_template.json"
_VOCABULARY = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class _Settings:
    """The directory's JSON files, each empty where it is not there. `text` is the text model's part of config.json."""

    tokenizer: Mapping[str, Any]
    generation: Mapping[str, Any]
    config: Mapping[str, Any]
    text: Mapping[str, Any]
    specials: Mapping[str, str]
    added: Mapping[int, str]


def read_directory(path: Path) -> ModelFiles:
    """Raises ModelFileError, and OSError."""
    settings = _settings(path)
    templates, template_conflicts = _templates(path, settings.tokenizer)
    tokenizer, tokenizer_conflicts = _tokenizer(path, settings)
    ends = dict(_ends(settings, tokenizer))
    context = settings.config.get("max_position_embeddings", settings.text.get("max_position_embeddings"))
    return ModelFiles(
        templates=templates,
        tokenizer=tokenizer,
        specials=settings.specials,
        stop_ids=frozenset().union(*ends.values()) or stop_ids([], tokenizer),
        bos=bos_text(_wants_bos(settings, tokenizer), settings.specials),
        context_tokens=context if isinstance(context, int) else None,
        conflicts=(
            *template_conflicts,
            *tokenizer_conflicts,
            *_end_conflicts(ends, tokenizer),
            *_id_conflicts(settings, tokenizer),
        ),
    )


def _settings(path: Path) -> _Settings:
    tokenizer, config = _json(path / _SETTINGS), _json(path / "config.json")
    inner = config.get("text_config")
    named = _json(path / "special_tokens_map.json") | tokenizer
    return _Settings(
        tokenizer=tokenizer,
        generation=_json(path / "generation_config.json"),
        config=config,
        text=inner if isinstance(inner, dict) else {},
        specials={name: text for name in _SPECIALS if (text := _token_text(named.get(name))) is not None},
        added=dict(_added(tokenizer, _json(path / "added_tokens.json"))),
    )


def _added(settings: Mapping[str, Any], older: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Special tokens that other files than the vocabulary's name, by id."""
    for text, token_id in older.items():
        if type(token_id) is not int:
            raise ModelFileError(f"added_tokens.json: {shown(text)} has no id.")
        yield token_id, text
    decoder = settings.get("added_tokens_decoder")
    for key, token in decoder.items() if isinstance(decoder, dict) else ():
        content = _token_text(token)
        if content is None or not (key.isascii() and key.isdecimal()):
            raise ModelFileError(f"{_SETTINGS}: added_tokens_decoder has {shown(key)}, which is not an id with a text.")
        yield int(key), content


def _templates(path: Path, settings: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """A file of its own wins over all of tokenizer_config.json's, those over the processor's."""
    configured: dict[str, str] = {}
    match settings.get("chat_template"):
        case str() as source:
            configured[DEFAULT] = source
        case list() as named:
            configured = {entry["name"]: entry["template"] for entry in named if _is_named(entry)}
    processor = _json(path / _PROCESSOR_TEMPLATE).get("chat_template")
    own = {DEFAULT: _text(path / _TEMPLATE)} if (path / _TEMPLATE).exists() else {}
    additional = {file.stem: _text(file) for file in sorted((path / "additional_chat_templates").glob("*.jinja"))}
    found = [
        (_TEMPLATE, own | additional),
        (_SETTINGS, configured),
        (_PROCESSOR_TEMPLATE, {DEFAULT: processor} if isinstance(processor, str) else {}),
    ]
    followed, used = next(((file, each) for file, each in found if DEFAULT in each), ("", {}))
    templates = with_default(used | additional, f"neither {_TEMPLATE} nor chat_template in {_SETTINGS} is there")
    return templates, [
        f"{file} has another chat template {shown(name)} than {followed}, which is followed."
        if name in templates
        else f"{file} has a chat template {shown(name)} that is not used: {followed} is followed, which has none of this name."
        for file, each in found
        for name, source in each.items()
        if templates.get(name) != source
    ]


def _is_named(entry: object) -> bool:
    if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str):
        return True
    raise ModelFileError(f"chat_template in {_SETTINGS} is a list of something else than a name and a template each.")


def _tokenizer(path: Path, settings: _Settings) -> tuple[Tokenizer, list[str]]:
    """tokenizer.json, else tekken.json, else tokenizer.model."""
    if (path / _VOCABULARY).exists():
        tokenizer = from_json(_bytes(path / _VOCABULARY, "the tokenizer"))
        beside = [f"There is a tekken.json beside {_VOCABULARY}, which is followed."] if (path / "tekken.json").exists() else []
        return tokenizer, [*beside, *_added_conflicts(settings.added, tokenizer)]
    if (path / "tekken.json").exists():
        return from_tekken(_json(path / "tekken.json"), settings.added), []
    if (path / "tokenizer.model").exists():
        try:
            pieces = read_pieces(_bytes(path / "tokenizer.model", "the tokenizer"), settings.added, _prefix(settings.tokenizer))
            return from_pieces(pieces), []
        except ModelFileError as error:
            raise ModelFileError(f"tokenizer.model cannot be read: {error}.") from None
    raise ModelFileError("The directory has no tokenizer: tokenizer.json is missing, and so are tekken.json and tokenizer.model.")


def _prefix(settings: Mapping[str, Any]) -> Prefix | None:
    """Whether a space goes before a text: before the first only, unless the tokenizer is to be as it once was."""
    if settings.get("add_prefix_space") is False:
        return "never"
    legacy = settings.get("legacy")
    return ("always" if legacy else "first") if isinstance(legacy, bool) else None


def _added_conflicts(added: Mapping[int, str], tokenizer: Tokenizer) -> Iterator[str]:
    """Where other files name tokens that the vocabulary does not have so."""
    wrong = {
        token_id: text for token_id, text in added.items() if tokenizer.special_ids.get(text, tokenizer.id_of(text)) != token_id
    }
    if wrong:
        token_id, text = min(wrong.items())
        yield (
            f"{_SETTINGS} or added_tokens.json give {shown(text)} the id {token_id}, which {_VOCABULARY} does not (and so for "
            f"{len(wrong) - 1} more tokens): it is followed."
        )


def _ends(settings: _Settings, tokenizer: Tokenizer) -> Iterator[tuple[str, frozenset[int]]]:
    """The end tokens that each file declares."""
    for file, source in (("generation_config.json", settings.generation), ("config.json", {**settings.text, **settings.config})):
        value = source.get("eos_token_id")
        if declared := [each for each in (value if isinstance(value, list) else [value]) if each is not None]:
            yield file, stop_ids(declared, tokenizer)
    eos = settings.specials.get("eos_token")
    if eos is not None:
        yield _SETTINGS, frozenset({_special_id(tokenizer, eos)})


def _end_conflicts(ends: Mapping[str, frozenset[int]], tokenizer: Tokenizer) -> Iterator[str]:
    """Files that name fewer end tokens than another one are common, and no contradiction."""
    union = frozenset().union(*ends.values())
    if union not in ends.values():
        said = "; ".join(
            f"{file} {', '.join(shown(tokenizer.text_of(each)) for each in sorted(ids))}" for file, ids in ends.items()
        )
        yield f"The files name different end tokens, each of which ends an answer: {said}."


def _id_conflicts(settings: _Settings, tokenizer: Tokenizer) -> Iterator[str]:
    config = {**settings.text, **settings.config}
    bos, declared = settings.specials.get("bos_token"), config.get("bos_token_id")
    if bos is not None and type(declared) is int and tokenizer.id_of(bos) not in (None, declared):
        yield f"The BOS token is {declared} in config.json, but {shown(bos)} in {_SETTINGS}, which is {tokenizer.id_of(bos)}."
    rows = config.get("vocab_size")
    if type(rows) is int and rows < tokenizer.vocab_size:
        yield f"By config.json the model has {rows} tokens, its vocabulary {tokenizer.vocab_size}: it cannot read the last ones."


def _wants_bos(settings: _Settings, tokenizer: Tokenizer) -> bool:
    declared, bos = settings.tokenizer.get("add_bos_token"), settings.specials.get("bos_token")
    if isinstance(declared, bool) or bos is None:
        return declared is True
    return tokenizer.adds_bos(_special_id(tokenizer, bos))


def _special_id(tokenizer: Tokenizer, text: str) -> int:
    token_id = tokenizer.id_of(text)
    if token_id is None:
        raise ModelFileError(f"{_SETTINGS} names the token {shown(text)}, which the tokenizer does not have.")
    return token_id


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
