"""SGLang as its wheel says that it is: what it takes, when it ends, and both ways to stream. Nothing here has seen the real one.

Where in the wheel of 0.5.23 each thing stands: fields in sglang.yaml; the check of a body in entrypoints/http_server.py
`generate_request`; the bounds in sampling/sampling_params.py `verify`; the end of an answer in managers/schedule_batch.py
`update_finish_state`; the events in managers/tokenizer_manager.py `_handle_batch_output`; log probabilities there in
`convert_logprob_style` and `_slice_streaming_output_meta_info`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fakes import table
from fakes.conforming import CACHED, DONE, Asked, ConformingEngine, gauges, plain
from support.scripted_engine import HEAD, Step, event

TABLE = table.load("sglang")
CONTEXT = 8192


class FakeSglang(ConformingEngine):
    """`incremental`: as with `--incremental-streaming-output`."""

    path = "/generate"

    def __init__(self, *, incremental: bool) -> None:
        super().__init__()
        self.incremental = incremental
        card = {"id": "tiny", "object": "model", "created": 1, "owned_by": "sglang", "root": "tiny", "parent": None}
        card |= {"max_model_len": CONTEXT}
        table.conforms(TABLE["model_card"], card)
        self.answers = {"/health": {}, "/v1/models": {"object": "list", "data": [card]}}

    def reports(self) -> Mapping[str, object]:
        load = self.load
        told = {"num_running_reqs": load.running, "num_waiting_reqs": load.waiting, "token_usage": load.kv_usage}
        tokens = load.block_tokens * load.blocks
        server = {"version": "0.5.23", "page_size": load.block_tokens, "max_total_num_tokens": tokens, "dp_size": 1}
        json = {
            "/server_info": {**server, "internal_states": [{}]},
            "/v1/loads?include=core": {"version": "0.5.23", "loads": [{"dp_rank": 0, "num_total_tokens": tokens, **told}]},
        }
        if not self.measures:
            return {**json, "/metrics": plain(404, {"detail": "Not Found"})}
        named = {
            "sglang:num_running_reqs": load.running,
            "sglang:num_queue_reqs": load.waiting,
            "sglang:token_usage": load.kv_usage,
        }
        labels = (f'{{model_name="tiny",engine_type="unified",tp_rank="{rank}",pp_rank="0",moe_ep_rank="0"}}' for rank in (0, 1))
        return {**json, "/metrics": "".join(gauges(named, each) for each in labels)}

    def refused(self, body: Any) -> Sequence[Step] | None:
        sampling = body.get("sampling_params") or {}
        fault = table.fault(TABLE["request"], body) or table.fault(TABLE["sampling_params"], sampling)
        if fault is not None:
            return plain(400, {"error": fault})
        if (wrong := _verified(sampling)) is not None:
            return self.failing(400, wrong)
        return None

    def failing(self, status: int, words: str) -> Sequence[Step]:
        """What it finds after the stream has begun is an error in it; else the answer is flat."""
        if status == 400:
            error = {"message": words, "type": "invalid_request_error", "code": 400, "retryable": False}
            return [HEAD, event({"error": error}), *DONE]
        body = {"object": "error", "message": words, "type": str(status), "param": None, "code": status}
        table.conforms(TABLE["error"], body)
        return plain(status, body)

    def asked(self, body: Any) -> Asked:
        sampling = body["sampling_params"]
        limit = sampling.get("max_new_tokens", 128)
        return Asked(
            prompt=body["input_ids"],
            limit=CONTEXT - len(body["input_ids"]) - 1 if limit is None else limit,
            stop_ids=frozenset(sampling.get("stop_token_ids") or ()),
            least=sampling.get("min_new_tokens", 0),
            top=body.get("top_logprobs_num", 0) if body.get("return_logprob") else None,
            grammar=sampling.get("ebnf"),
            settings=sampling,
        )

    def events(self, asked: Asked, parts: Sequence[list[int]], finish: str) -> list[object]:
        events: list[object] = []
        seen: list[int] = []
        for at, part in enumerate(parts):
            seen = [*seen, *part]
            ids = part if self.incremental else seen
            end = None
            if at == len(parts) - 1:
                end = {"type": "stop", "matched": seen[-1]} if finish == "stop" else {"type": "length", "length": asked.limit}
            meta: dict[str, object] = {
                "id": "0" * 32,
                "finish_reason": end,
                "prompt_tokens": len(asked.prompt),
                "weight_version": "default",
                "num_retractions": 0,
                "reasoning_tokens": 0,
                "completion_tokens": len(seen),
                "cached_tokens": CACHED,
            }
            meta |= _logprobs(asked.top, ids)
            answer = {"text": "its text is never read", "output_ids": ids, "meta_info": meta}
            table.conforms(TABLE["answer"], answer)
            table.conforms(TABLE["meta_info"], meta)
            events.append(answer)
        return events


def _verified(sampling: dict[str, Any]) -> str | None:
    if not 0.0 < sampling.get("repetition_penalty", 1.0) <= 2.0:
        return "repetition_penalty must be in (0, 2] (1.0 = no penalty)"
    if (top_k := sampling.get("top_k", -1)) != -1 and top_k < 1:
        return "top_k must be -1 (disable) or at least 1"
    limit = sampling.get("max_new_tokens", 128)
    if limit is not None and sampling.get("min_new_tokens", 0) > limit:
        return "min_new_tokens must be in [0, max_new_tokens]"
    return None


def _logprobs(top: int | None, ids: Sequence[int]) -> dict[str, object]:
    """Of the ids of an event, whether these are all or the new ones. Entries are the number, the id and no text."""
    if top is None:
        return {}
    told: dict[str, object] = {
        "input_token_logprobs": [],
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
        "output_token_logprobs_length": len(ids),
    }
    if top:
        told["input_top_logprobs"] = []
        told["output_top_logprobs"] = [[[-0.5 - rank, token + rank, None] for rank in range(top)] for token in ids]
    return told
