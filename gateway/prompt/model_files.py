"""What a model's own files say about speaking to it, whatever files they are."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from gateway.errors import ModelFileError, shown
from gateway.prompt.tokenizer import Tokenizer

DEFAULT = "default"
TOOL_USE = "tool_use"
MAX_CONTEXT_TOKENS = 1 << 31


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """`templates` are the chat templates by name, `default` always among them; `specials` the texts that templates know as
    `bos_token`, `eos_token` and so on; `stop_ids` the union of every declared end token. `bos`: the text that a prompt should
    begin with, by the files: writing it is left to the template. `context_tokens` is None where the files do not say.
    `conflicts`: where the files contradict each other, and which of them is followed, a sentence each. `hashes` are the SHA-256
    of all that was read, by its name.
    """

    templates: Mapping[str, str]
    tokenizer: Tokenizer
    specials: Mapping[str, str]
    stop_ids: frozenset[int]
    bos: str | None
    context_tokens: int | None
    conflicts: tuple[str, ...] = ()
    hashes: Mapping[str, str] = field(default_factory=dict)

    def digest(self) -> str:
        """The same for the same renderings, however the files are kept. Takes a fraction of the time of reading them."""
        rendered = (sorted(self.templates.items()), sorted(self.specials.items()), self.tokenizer.backend.to_str())
        return sha256(repr(rendered).encode()).hexdigest()


def with_default(templates: dict[str, str], missing: str) -> dict[str, str]:
    """The templates, the default one among them. Raises ModelFileError."""
    if not templates.get(DEFAULT):
        raise ModelFileError(
            f"The model has no chat template ({missing}). It is not an instruction-tuned model, or its template must be added: "
            "none is assumed."
        )
    return templates


def context_length(value: object, name: str) -> int | None:
    """How many tokens the model's context has by this value, None where that is None. Raises ModelFileError, which names it."""
    if value is None or (type(value) is int and 0 < value <= MAX_CONTEXT_TOKENS):
        return value
    raise ModelFileError(f"{name} is {shown(str(value))}, not a number of tokens from 1 to {MAX_CONTEXT_TOKENS}.")


def bos_text(wanted: bool, specials: Mapping[str, str]) -> str | None:
    """The text of the BOS token, where one is wanted. Raises ModelFileError."""
    if wanted and "bos_token" not in specials:
        raise ModelFileError("The model wants a BOS token before each prompt, but its files do not say which.")
    return specials["bos_token"] if wanted else None


def stop_ids(declared: Iterable[object], tokenizer: Tokenizer) -> frozenset[int]:
    """The end tokens that these values declare; None declares none. Raises ModelFileError for what is no id, and without any."""
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
