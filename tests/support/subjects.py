"""Models to be checked: each family's own small template, with a vocabulary that has its tokens, as the gateway serves it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from support.vocabulary import fixed_clock, metadata, template_text, tokenizer_fields

from gateway.checks.base import Subject
from gateway.formats.base import Format
from gateway.formats.registry import load
from gateway.prompt.derive import derive
from gateway.prompt.gguf_source import from_metadata
from gateway.prompt.model_files import ModelFiles
from gateway.prompt.profile import Profile
from gateway.settings_fit import Speech, ToolMode
from gateway.voice import wired

DATA = Path(__file__).parents[1] / "data" / "families"
FAMILIES = sorted(path.parent.name for path in DATA.glob("*/template.jinja"))
# Where a family's template does not tell its format.
FORMATS: Mapping[str, str] = {
    "deepseek_r1": "deepseek_v3",
    "deepseek_v3": "deepseek_v3",
    "deepseek_v3_1": "deepseek_v31",
    "granite3_3": "granite3",
    "smollm3": "hermes",
}
# What ends a turn of the family, beside its `eos_token`.
ENDS: Mapping[str, tuple[str, ...]] = {
    "apertus": ("<|assistant_end|>", "<|tools_suffix|>"),
    "functionary3_1": ("<|eot_id|>", "<|eom_id|>"),
    "gemma2": ("<end_of_turn>",),
    "gemma3": ("<end_of_turn>",),
    "gemma4": ("<turn|>", "<|tool_response>"),
    "glm4_6": ("<|user|>", "<|observation|>"),
    "glm4_7": ("<|user|>", "<|observation|>"),
    "glm5": ("<|user|>", "<|observation|>"),
    "gpt_oss": ("<|return|>", "<|call|>"),
    "llama3": ("<|eot_id|>",),
    "llama3_1": ("<|eot_id|>",),
    "phi3_5": ("<|end|>",),
}


def real_templates() -> list[tuple[str, str]]:
    """Each family with the real templates of it."""
    named = {
        family: yaml.safe_load((DATA / family / "transcript.yaml").read_text(encoding="utf-8"))["real"] for family in FAMILIES
    }
    return [(family, real) for family, reals in named.items() for real in reals]


@cache
def formats() -> Mapping[str, Format]:
    return load()


def own_template(family: str) -> str:
    return (DATA / family / "template.jinja").read_text(encoding="utf-8")


def family_files(family: str, template: str | None = None) -> ModelFiles:
    """A model of the family, with this template in place of its own."""
    specials: dict[str, str] = yaml.safe_load((DATA / family / "transcript.yaml").read_text(encoding="utf-8"))["specials"]
    markers = [text for each in formats().values() for text in each.visible if text in own_template(family)]
    fields = tokenizer_fields(template=template_text("full"))
    known: Any = fields["tokenizer.ggml.tokens"]
    types: Any = fields["tokenizer.ggml.token_type"]
    ends = ENDS.get(family, ())
    added = [text for text in dict.fromkeys([*markers, *specials.values(), *ends]) if text not in known]
    tokens = [*known, *added]
    eos = tokens.index(specials.get("eos_token", "<|im_end|>"))
    changed = tokenizer_fields(
        template=template_text("full"), tokens=tokens, token_type=[*types, *[3] * len(added)], eos_token_id=eos, eot_token_id=None
    )
    files = from_metadata({"general.architecture": "tiny", "tiny.context_length": 1 << 16, **metadata(changed)})
    declared = frozenset([eos, *map(tokens.index, ends)])
    return replace(
        files,
        templates={"default": template or own_template(family)},
        specials=specials,
        stop_ids=declared,
        hashes={"template": str(hash(template))},
    )


def family_subject(family: str, template: str | None = None, *, tools: ToolMode = "native") -> Subject:
    return subject_of(family, family_files(family, template), FORMATS.get(family), tools=tools)


def subject_of(name: str, files: ModelFiles, declared: str | None = None, *, tools: ToolMode = "native") -> Subject:
    """A model as it is served with the profile that its files give."""
    return wired_subject(name, files, derive(name, files, formats(), declared=declared), tools=tools)


def wired_subject(name: str, files: ModelFiles, profile: Profile, *, tools: ToolMode = "native") -> Subject:
    """A model as it is served with this profile."""
    rendered = wired(files, Speech(Path(name), "auto", tools), formats(), profile, clock=fixed_clock).rendered
    return Subject(name, files, rendered.prompter, rendered.format, rendered.call_format, profile, files.hashes)


def with_profile(subject: Subject, **changes: Any) -> Subject:
    """The same model, served with a profile that a person changed."""
    return wired_subject(subject.name, subject.files, replace(subject.profile, **changes))
