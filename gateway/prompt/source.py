"""What a model's own files say about speaking to it: a GGUF file, or a Hugging Face directory.

Invariant: everything comes from the files, or `ModelFileError` says what is missing. Nothing is made up: a model without a chat
template is refused, never given another model's.
"""

import mmap
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from gateway.errors import ModelFileError
from gateway.prompt import gguf
from gateway.prompt.gguf_source import from_metadata
from gateway.prompt.huggingface import read_directory
from gateway.prompt.model_files import ModelFiles

METADATA = "metadata"  # of a GGUF file: what stands before its tensors


def read_model(path: Path) -> ModelFiles:
    """Reads a GGUF file or a model directory. Raises ModelFileError, which names the path."""
    try:
        return read_directory(path) if path.is_dir() else _gguf_file(path)
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from None
    except RecursionError:
        raise ModelFileError(f"{path}: A value in its files is nested too deeply.") from None
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror or error}") from None


def _gguf_file(path: Path) -> ModelFiles:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise ModelFileError("The file is empty.")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer, memoryview(buffer) as view:
            metadata, size = gguf.read_head(view)
            digest = sha256(view[:size]).hexdigest()
    return replace(from_metadata(metadata), hashes={METADATA: digest})
