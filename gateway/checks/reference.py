"""transformers as the reference: the text by its own rendering of the model's templates, the ids by its own tokenizer of it.

It is an optional extra. Nothing of a model's repository is run, and nothing is fetched. Its sandbox has no limits: it is to be
given only what the gateway's own has rendered before.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import models

from gateway.checks.base import Reference
from gateway.errors import BadRequest, shown
from gateway.prompt.model_files import ModelFiles
from gateway.prompt.renderer import Draft
from gateway.prompt.template import RENDER_FAULTS

MISSING = "transformers is not installed: `pip install '.[check]'` in a clone brings it"
# What it raises for a directory that it cannot read: the tokenizer's kind is unknown to it, or needs a package that is not there.
_UNREADABLE = (ImportError, OSError, ValueError, TypeError, AttributeError, LookupError, RuntimeError)


def transformers_reference(source: Path, files: ModelFiles, clock: Callable[[], datetime]) -> Reference | None:
    """The reference for a model whose files were read from `source`; None where transformers is not installed.

    `clock` is the one by which the gateway renders: a fixed one, so that both sides write the same date.
    """
    try:
        import transformers  # noqa: PLC0415  an optional extra
        from transformers.utils.chat_template_utils import _compile_jinja_template  # noqa: PLC0415  likewise
    except ImportError:
        return None
    own, why = _own_tokenizer(transformers, source)
    wordless = transformers.PreTrainedTokenizerFast(tokenizer_object=Backend(models.BPE()), **files.specials)  # type: ignore[no-untyped-call]  # theirs
    return _Transformers(
        f"transformers {transformers.__version__}", why, own, wordless, files.templates, clock, _compile_jinja_template
    )


def _own_tokenizer(transformers: Any, source: Path) -> tuple[Any, str]:
    """The model's tokenizer as transformers reads it, or why it does not."""
    if not source.is_dir():
        return None, "transformers reads a model's tokenizer from a directory, not from its GGUF file"
    try:
        return transformers.AutoTokenizer.from_pretrained(str(source), local_files_only=True, trust_remote_code=False), ""
    except _UNREADABLE as error:
        return None, f"transformers cannot read the model's tokenizer: {shown(str(error).strip(), 200)}"


@dataclass(frozen=True, slots=True)
class _Transformers:
    """`own` is the model's tokenizer, None where transformers reads none; `wordless` renders only. `compiled` gives the template
    that transformers keeps for a source."""

    name: str
    without_ids: str
    own: Any
    wordless: Any
    templates: Mapping[str, str]
    clock: Callable[[], datetime]
    compiled: Callable[[str], Any]

    def text(self, draft: Draft) -> str:
        """Raises BadRequest where transformers does not render it."""
        return str(self._applied(self.wordless if self.own is None else self.own, draft, tokenize=False))

    def ids(self, draft: Draft) -> Sequence[int] | None:
        """Raises likewise."""
        return None if self.own is None else tuple(self._applied(self.own, draft, tokenize=True, return_dict=False))

    def _applied(self, tokenizer: Any, draft: Draft, **how: Any) -> Any:
        source, variables = self.templates[draft.template], dict(draft.variables)
        messages = variables.pop("messages")
        try:
            # It reads the clock itself, and takes none.
            self.compiled(source).globals["strftime_now"] = self.clock().strftime
            return tokenizer.apply_chat_template(
                messages, chat_template=source, continue_final_message=draft.continues, **variables, **how
            )
        except RENDER_FAULTS as error:
            raise BadRequest(f"{self.name} does not render this: {error}", param="messages") from None
