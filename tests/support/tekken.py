"""A small `tekken.json` of our own."""

import base64
from typing import Any

WORDS = (b"th", b"the", b" the", b"\xc3\xa9", b"thethe", b"12", b"beyond the size")
SIZE = 4 + 256 + len(WORDS) - 1
NAMES = {0: "<unk>", 1: "<s>", 2: "</s>"}


def tekken_file(**changes: Any) -> dict[str, Any]:
    """What the file holds."""
    ranked = [bytes([byte]) for byte in range(256)] + list(WORDS)
    config = {"pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+", "default_vocab_size": SIZE}
    return {
        "config": config | {"default_num_special_tokens": 4, "version": "v11"},
        "vocab": [{"rank": rank, "token_bytes": base64.b64encode(data).decode()} for rank, data in enumerate(ranked)],
        "special_tokens": [{"rank": token_id, "token_str": text, "is_control": True} for token_id, text in NAMES.items()],
    } | changes
