"""What every section of the settings is made of: its base, and the types of its values."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError

_LABEL = re.compile(r"[A-Za-z0-9._:/-]{1,128}")


@dataclass(frozen=True, slots=True)
class Context:
    """What values are checked against. Settings made in code, without one, are checked for their types only."""

    folder: Path | None = None
    environ: Mapping[str, str] | None = None
    kinds: Collection[str] | None = None
    formats: Collection[str] | None = None


def context_of(info: ValidationInfo) -> Context:
    """What the values are checked against."""
    return info.context if isinstance(info.context, Context) else Context()


def wrong(message: str) -> PydanticCustomError:
    """What is wrong with a value."""
    return PydanticCustomError("settings", "{message}", {"message": message})


def _label(value: Any) -> Any:
    if isinstance(value, str) and not _LABEL.fullmatch(value):
        raise wrong("must be 1 to 128 letters, digits or any of . _ : / -")
    return value


def some(value: Any) -> Any:
    """Refuses an empty list."""
    if value in ([], ()):
        raise wrong("must have at least one item")
    return value


def section_of(value: Any) -> Any:
    """A section without a key is an empty one."""
    return {} if value is None else value


Label = Annotated[str, BeforeValidator(_label)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Labels = Annotated[tuple[Label, ...], Field(strict=False)]


class Section(BaseModel):
    """Keys that are known, of the types that they have, and never changed."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True)
