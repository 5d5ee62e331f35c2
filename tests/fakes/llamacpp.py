"""llama.cpp's `/completion`, in the shapes that tests/data/engines/llamacpp has from the real one: text out, ids where a chunk
has them all, special tokens where they are asked for. `make test` runs the real one too."""

from collections.abc import Mapping, Sequence
from typing import Any

from fakes.conforming import CACHED, END, Asked, ConformingEngine, gauges, plain
from support.scripted_engine import CLOSE, Step
from support.vocabulary import small_tokenizer


class FakeLlamaCpp(ConformingEngine):
    """It ignores fields that it does not know, as the real one does, and knows no stop ids but its own end of turn."""

    path = "/completion"

    def __init__(self) -> None:
        super().__init__()
        settings = {"n_ctx": 8192}
        self.answers |= {"/props": {"model_path": "tiny.gguf", "default_generation_settings": settings, "total_slots": 2}}

    def reports(self) -> Mapping[str, object]:
        if not self.measures:
            lacking = plain(501, {"error": {"code": 501, "message": "no", "type": "not_supported_error"}})
            return {"/metrics": lacking, "/slots": lacking}
        held = int(self.load.kv_usage * 2 * 8192)
        slots = [{"n_ctx": 8192, "id_task": 1, "n_prompt_tokens": held}, {"n_ctx": 8192}]
        names = {"llamacpp:requests_processing": self.load.running, "llamacpp:requests_deferred": self.load.waiting}
        return {"/metrics": gauges(names), "/slots": plain(200, slots)}

    def end(self) -> Sequence[Step]:
        return (b"0\r\n\r\n", CLOSE)

    def asked(self, body: Any) -> Asked:
        return Asked(
            prompt=body["prompt"],
            limit=body.get("n_predict", 8192),
            never=frozenset({END}) if body.get("ignore_eos") else frozenset(),
            top=body.get("n_probs"),
            grammar=body.get("grammar"),
            visible=tuple(body.get("preserved_tokens", ())),
            settings=body,
        )

    def events(self, asked: Asked, parts: Sequence[list[int]], finish: str) -> list[object]:
        """The text of a character comes whole, with its last id only."""
        tokenizer = small_tokenizer()
        special = {token: text for text, token in tokenizer.special_ids.items()}
        detokenizer = tokenizer.detokenizer()
        events: list[object] = []
        made = 0
        for token in [token for part in parts for token in part]:
            made += 1
            if token in special:
                text, known = special[token] if special[token] in asked.visible else "", True
            else:
                text = detokenizer.add(token)
                known = bool(text)
            if not known:
                continue  # a part of a character
            events.append(self._step(asked, text, [token], made))
        end = self._step(asked, "", [], made) | {
            "stop": True,
            "stop_type": "eos" if finish == "stop" else "limit",
            "stopping_word": "",
            "timings": {"cache_n": CACHED, "prompt_n": len(asked.prompt) - CACHED, "predicted_n": made},
        }
        return [*events, end]

    def _step(self, asked: Asked, text: str, tokens: list[int], made: int) -> dict[str, object]:
        step: dict[str, object] = {"index": 0, "content": text, "tokens": tokens, "stop": False}
        step |= {"tokens_predicted": made, "tokens_evaluated": len(asked.prompt)}
        if asked.top and tokens:
            top = [{"id": tokens[0] + rank, "token": "", "bytes": [], "logprob": -0.5 - rank} for rank in range(asked.top)]
            step["completion_probabilities"] = [{"id": tokens[0], "logprob": -0.5, "top_logprobs": top}]
        return step
