"""What the files of a Hugging Face directory say about speaking to its model.

Where several say the same thing, one is followed, as transformers does; where they contradict each other, that is said.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from gateway.errors import ModelFileError, shown
from gateway.prompt.model_files import DEFAULT, ModelFiles, bos_text, context_length, stop_ids, with_default
from gateway.prompt.sentencepiece import MAX_TOKENS, Prefix
from gateway.prompt.sentencepiece_file import read_pieces
from gateway.prompt.tokenizer import Tokenizer, from_json, from_pieces, from_tekken
from gateway.wire import jsonio

MAX_FILE_BYTES = 256 * 1024 * 1024
_SPECIALS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_SETTINGS = "tokenizer_config.json"
_OLDER_SETTINGS = "special_tokens_map.json"
_ADDED = "added_tokens.json"
_CONFIG = "config.json"
_GENERATION = "generation_config.json"
_TEMPLATE = "chat_template.jinja"
_MORE_TEMPLATES = "additional_chat_templates"
_PROCESSOR_TEMPLATE = "chat_template.json"
_VOCABULARY = "tokenizer.json"
_TEKKEN = "tekken.json"
_PIECES = "tokenizer.model"
_FILES = (
    *(_TEMPLATE, _PROCESSOR_TEMPLATE, _SETTINGS, _OLDER_SETTINGS, _ADDED, _CONFIG, _GENERATION),
    *(_VOCABULARY, _TEKKEN, _PIECES),
)
_CONTEXT = "max_position_embeddings"
_OF_MODEL = (_CONTEXT, "vocab_size", "bos_token_id")  # its text model's part may say these too; end tokens all count
_MAX_ID_DIGITS = len(str(MAX_TOKENS))


@dataclass(frozen=True, slots=True)
class _Settings:
    """The directory's JSON files, each empty where it is not there. `text` is the text model's part of config.json; what either
    sets to null it does not say. `added` are the special tokens that other files than the vocabulary name, the last of an id
    counts."""

    tokenizer: Mapping[str, Any]
    generation: Mapping[str, Any]
    config: Mapping[str, Any]
    text: Mapping[str, Any]
    specials: Mapping[str, str]
    added: tuple[tuple[int, str], ...]
    conflicts: tuple[str, ...]

    def of_model(self, key: str) -> Any:
        """What config.json says, where it does not itself its text model's part."""
        return self.config.get(key, self.text.get(key))


class _Template(NamedTuple):
    file: str
    name: str
    source: str


def read_directory(path: Path) -> ModelFiles:
    """Raises ModelFileError, and OSError."""
    settings = _settings(path)
    templates, template_conflicts = _templates(path, settings.tokenizer)
    tokenizer, tokenizer_conflicts = _tokenizer(path, settings)
    ends = dict(_ends(settings, tokenizer))
    return ModelFiles(
        templates=templates,
        tokenizer=tokenizer,
        specials=settings.specials,
        stop_ids=frozenset().union(*ends.values()) or stop_ids([], tokenizer),
        bos=bos_text(_wants_bos(settings, tokenizer), settings.specials),
        context_tokens=context_length(settings.of_model(_CONTEXT), f"{_CONTEXT} in {_CONFIG}"),
        conflicts=(
            *settings.conflicts,
            *template_conflicts,
            *tokenizer_conflicts,
            *_added_conflicts(settings, tokenizer),
            *_end_conflicts(ends, tokenizer),
            *_id_conflicts(settings, tokenizer),
        ),
        hashes={name: sha256((path / name).read_bytes()).hexdigest() for name in _read(path)},
    )


def _read(path: Path) -> list[str]:
    """The names of the files that are there and say something."""
    more = sorted(f"{_MORE_TEMPLATES}/{file.name}" for file in (path / _MORE_TEMPLATES).glob("*.jinja"))
    return [*(name for name in _FILES if (path / name).exists()), *more]


def _settings(path: Path) -> _Settings:
    tokenizer, older, config = _json(path / _SETTINGS), _json(path / _OLDER_SETTINGS), _json(path / _CONFIG)
    inner = config.get("text_config")
    said, text = _without_null(config), _without_null(inner if isinstance(inner, dict) else {})
    named, named_before = dict(_special_texts(tokenizer, _SETTINGS)), dict(_special_texts(older, _OLDER_SETTINGS))
    return _Settings(
        tokenizer=tokenizer,
        generation=_json(path / _GENERATION),
        config=said,
        text=text,
        specials={name: text for name, text in (named_before | named).items() if text is not None},
        added=(*_added(_json(path / _ADDED)), *_decoder(tokenizer)),
        conflicts=(
            *_differing(_OLDER_SETTINGS, named_before, _SETTINGS, named),
            *_differing(f"{_CONFIG}'s text_config", _each(text, _OF_MODEL), _CONFIG, _each(said, _OF_MODEL)),
        ),
    )


def _without_null(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value is not None}


def _each(settings: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: settings[key] for key in keys if key in settings}


def _differing(file: str, said: Mapping[str, Any], followed: str, there: Mapping[str, Any]) -> Iterator[str]:
    """What a file says otherwise than the one that is followed."""
    for key, value in said.items():
        if key in there and there[key] != value:
            one, other = ("none" if each is None else shown(str(each)) for each in (value, there[key]))
            yield f"{file} has {one} for {key}, {followed} {other}, which is followed."


def _special_texts(settings: Mapping[str, Any], file: str) -> Iterator[tuple[str, str | None]]:
    """The special tokens that a file names; None for one that it says there is none of."""
    for name in _SPECIALS:
        value = settings.get(name)
        text = _token_text(value)
        if text is None and value is not None:
            raise ModelFileError(f"{file}: {name} is not a text.")
        if name in settings:
            yield name, text


def _decoder(settings: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Special tokens that tokenizer_config.json names by id."""
    decoder = settings.get("added_tokens_decoder", {})
    if not isinstance(decoder, dict):
        raise ModelFileError(f"{_SETTINGS}: added_tokens_decoder is not an object.")
    for key, token in decoder.items():
        content = _token_text(token)
        is_id = key.isascii() and key.isdecimal() and len(key) <= _MAX_ID_DIGITS
        if content is None or not is_id:
            raise ModelFileError(f"{_SETTINGS}: added_tokens_decoder has {shown(key)}, which is not an id with a text.")
        yield int(key), content


def _added(older: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """The same of added_tokens.json, which has ids by text."""
    for text, token_id in older.items():
        if type(token_id) is not int or not 0 <= token_id < MAX_TOKENS:
            raise ModelFileError(f"{_ADDED}: {shown(text)} has no id.")
        yield token_id, text


def _templates(path: Path, settings: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Files of their own win over all of tokenizer_config.json's, those over the processor's; of one name the last."""
    more = [
        _Template(f"{file.parent.name}/{file.name}", file.stem, _text(file))
        for file in sorted((path / _MORE_TEMPLATES).glob("*.jinja"))
    ]
    own = [_Template(_TEMPLATE, DEFAULT, _text(path / _TEMPLATE))] if (path / _TEMPLATE).exists() else []
    processor = _json(path / _PROCESSOR_TEMPLATE)
    places = [[*own, *more], [*_configured(settings, _SETTINGS)], [*_configured(processor, _PROCESSOR_TEMPLATE)]]
    followed = next((place for place in places if any(each.name == DEFAULT for each in place)), [])
    used = {each.name: each for each in (*followed, *more)}
    missing = (
        f"{used[DEFAULT].file} is empty" if DEFAULT in used else f"neither {_TEMPLATE} nor chat_template in {_SETTINGS} is there"
    )
    templates = with_default({name: each.source for name, each in used.items()}, missing)
    return templates, [_not_used(each, used) for place in places for each in place if templates.get(each.name) != each.source]


def _not_used(template: _Template, used: Mapping[str, _Template]) -> str:
    file, name, _ = template
    if name not in used:
        return (
            f"{file} has a chat template {shown(name)} that is not used: {used[DEFAULT].file} is followed, which has none of "
            "this name."
        )
    if used[name].file == file:
        return f"{file} has two chat templates {shown(name)}, the last of which is followed."
    return f"{file} has another chat template {shown(name)} than {used[name].file}, which is followed."


def _configured(settings: Mapping[str, Any], file: str) -> Iterator[_Template]:
    """The chat templates in a JSON file: one, or several by name, as a list or as an object."""
    named: list[tuple[object, object]]
    match settings.get("chat_template"):
        case None:
            named = []
        case str() as only:
            named = [(DEFAULT, only)]
        case dict() as by_name:
            named = [*by_name.items()]
        case list() as entries if all(isinstance(entry, dict) for entry in entries):
            named = [(entry.get("name"), entry.get("template")) for entry in entries]
        case _:
            named = [(None, None)]
    for name, source in named:
        if not (isinstance(name, str) and isinstance(source, str)):
            raise ModelFileError(f"chat_template in {file} is something else than a template, or templates with a name each.")
        yield _Template(file, name, source)


def _tokenizer(path: Path, settings: _Settings) -> tuple[Tokenizer, list[str]]:
    """tokenizer.json, else tekken.json, else tokenizer.model."""
    if (path / _VOCABULARY).exists():
        tokenizer = from_json(_bytes(path / _VOCABULARY, "the tokenizer"))
        beside = [f"There is a {_TEKKEN} beside {_VOCABULARY}, which is followed."] if (path / _TEKKEN).exists() else []
        return tokenizer, beside
    if (path / _TEKKEN).exists():
        return from_tekken(_json(path / _TEKKEN), dict(settings.added)), []
    if (path / _PIECES).exists():
        try:
            pieces = read_pieces(_bytes(path / _PIECES, "the tokenizer"), dict(settings.added), _prefix(settings.tokenizer))
            return from_pieces(pieces), []
        except ModelFileError as error:
            raise ModelFileError(f"{_PIECES} cannot be read: {error}.") from None
    raise ModelFileError(f"The directory has no tokenizer: {_VOCABULARY} is missing, and so are {_TEKKEN} and {_PIECES}.")


def _prefix(settings: Mapping[str, Any]) -> Prefix | None:
    """Whether a space goes before a text: before the first only, unless the tokenizer is to be as it once was."""
    if settings.get("add_prefix_space") is False:
        return "never"
    legacy = settings.get("legacy")
    return ("always" if legacy else "first") if isinstance(legacy, bool) else None


def _added_conflicts(settings: _Settings, tokenizer: Tokenizer) -> Iterator[str]:
    """Where other files name tokens that the vocabulary does not have so."""
    ids = tokenizer.special_ids
    wrong = {(token_id, text) for token_id, text in settings.added if ids.get(text, tokenizer.id_of(text)) != token_id}
    if wrong:
        token_id, text = min(wrong)
        yield (
            f"{_SETTINGS} or {_ADDED} give {shown(text)} the id {token_id}, which the tokenizer does not (and so for "
            f"{len(wrong) - 1} more tokens): the tokenizer is followed."
        )


def _ends(settings: _Settings, tokenizer: Tokenizer) -> Iterator[tuple[str, frozenset[int]]]:
    """The end tokens that each file declares."""
    text = f"{_CONFIG}'s text_config"
    for file, source in ((_GENERATION, settings.generation), (_CONFIG, settings.config), (text, settings.text)):
        value = source.get("eos_token_id")
        if declared := [each for each in (value if isinstance(value, list) else [value]) if each is not None]:
            yield file, stop_ids(declared, tokenizer)
    if "eos_token" in settings.specials:
        yield (
            _SETTINGS if "eos_token" in settings.tokenizer else _OLDER_SETTINGS,
            frozenset({_special_id(settings, "eos_token", tokenizer)}),
        )


def _end_conflicts(ends: Mapping[str, frozenset[int]], tokenizer: Tokenizer) -> Iterator[str]:
    """Files that name fewer end tokens than another one are common, and no contradiction."""
    union = frozenset().union(*ends.values())
    if union not in ends.values():
        said = "; ".join(
            f"{file} {', '.join(shown(tokenizer.text_of(each)) for each in sorted(ids))}" for file, ids in ends.items()
        )
        yield f"The files name different end tokens, each of which ends an answer: {said}."


def _id_conflicts(settings: _Settings, tokenizer: Tokenizer) -> Iterator[str]:
    bos = settings.specials.get("bos_token")
    own = tokenizer.id_of(bos) if bos is not None else None
    for file, declared in ((_GENERATION, settings.generation.get("bos_token_id")), (_CONFIG, settings.of_model("bos_token_id"))):
        if own is not None and type(declared) is int and declared != own:
            yield f"The BOS token is {declared} in {file}, but the tokenizer's is {shown(str(bos))}, which is {own}."
    rows = settings.of_model("vocab_size")
    if type(rows) is int and rows < tokenizer.vocab_size:
        yield f"By {_CONFIG} the model has {rows} tokens, its vocabulary {tokenizer.vocab_size}: it cannot read the last ones."


def _wants_bos(settings: _Settings, tokenizer: Tokenizer) -> bool:
    declared = settings.tokenizer.get("add_bos_token")
    if isinstance(declared, bool) or "bos_token" not in settings.specials:
        return declared is True
    return tokenizer.adds_bos(_special_id(settings, "bos_token", tokenizer))


def _special_id(settings: _Settings, name: str, tokenizer: Tokenizer) -> int:
    text = settings.specials[name]
    token_id = tokenizer.id_of(text)
    if token_id is None:
        raise ModelFileError(f"The {name} of the tokenizer's settings is {shown(text)}, which the tokenizer does not have.")
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
        value = jsonio.decode_python(_bytes(file, "settings"))
    except jsonio.JsonError as error:
        raise ModelFileError(f"{file.name}: {error.message}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{file.name} does not hold a JSON object.")
    return value
