"""transformers' own rendering of what a Prompter hands to its template, to compare with."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from support.vocabulary import fixed_clock
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from gateway.prompt.renderer import Draft


class _FixedTime(datetime):
    """What templates read as the time."""

    @classmethod
    def now(cls, tz: Any = None) -> "_FixedTime":
        moment = fixed_clock()
        return cls(moment.year, moment.month, moment.day, moment.hour, moment.minute, tzinfo=tz)


@pytest.fixture
def fixed_reference_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' templates read the same moment as ours."""
    monkeypatch.setattr(chat_template_utils, "datetime", _FixedTime)


def wordless_tokenizer(specials: Mapping[str, str]) -> PreTrainedTokenizerFast:
    """A tokenizer of transformers' that renders only."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **specials)  # type: ignore[no-untyped-call]  # theirs


def reference_text(tokenizer: PreTrainedTokenizerFast, template: str, draft: Draft) -> str:
    """The text, by the public call. Raises what transformers raises where the template refuses."""
    text = tokenizer.apply_chat_template(**_asked(template, draft), tokenize=False)
    assert isinstance(text, str)
    return text


def reference_ids(tokenizer: PreTrainedTokenizerFast, template: str, draft: Draft) -> tuple[int, ...]:
    """The token ids, by the public call."""
    return tuple(tokenizer.apply_chat_template(**_asked(template, draft), tokenize=True, return_dict=False))


def _asked(template: str, draft: Draft) -> dict[str, Any]:
    variables = dict(draft.variables)
    return {"conversation": variables.pop("messages"), "chat_template": template, **variables}
