"""TensorRT-LLM's `trtllm-serve` as its public repository says that it is. Nothing here has seen the real one.

Beside trtllm.yaml: the events are `completion_stream_post_processor` of tensorrt_llm/serve/postprocess_handlers.py, stop words
and what is left of them `_handle_sequence` of tensorrt_llm/executor/result.py, the order of ends `_handle_stop_criteria` of
tensorrt_llm/_torch/pyexecutor/sampler.py. With `hides_end` the end of turn that it knows itself is left out of the ids: that
another backend does so is not ruled out by what was read.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fakes import table
from fakes.conforming import END, Asked, ConformingEngine, Load, gauges, plain, usage
from support.scripted_engine import Seen, Step

TABLE = table.load("trtllm")
NEVER = -100


class FakeTrtLlm(ConformingEngine):
    """It has no `/tokenize`."""

    def __init__(self) -> None:
        super().__init__()
        card = {"id": "tiny", "object": "model", "created": 1, "owned_by": "tensorrt_llm"}
        table.conforms(TABLE["model_card"], card)
        models = {"object": "list", "data": [card]}
        self._drained: Load | None = None
        self.answers = {
            "/health": {},
            "/version": {"version": "1.2.1"},
            "/v1/models": models,
            "/tokenize": {"detail": "Not Found"},
        }

    def reports(self) -> Mapping[str, object]:
        load = self.load
        if self.measures:
            named = {
                "trtllm_num_requests_running": load.running,
                "trtllm_num_requests_waiting": load.waiting,
                "trtllm_kv_cache_utilization": load.kv_usage,
                "trtllm_kv_cache_tokens_per_block": load.block_tokens,
                "trtllm_kv_cache_max_blocks": load.blocks,
            }
            labels = '{model_name="tiny",engine_type="trtllm"}'
            return {"/prometheus/metrics": gauges(named, labels)}
        return {"/prometheus/metrics": plain(404, {"detail": "Not Found"})}

    def _told(self, seen: Seen) -> object:
        """A step is told by `/metrics` once."""
        if seen.path != "/metrics":
            return super()._told(seen)
        load, drained = self.load, self._drained
        self._drained = load
        cache = {"usedNumBlocks": load.kv_usage * load.blocks, "maxNumBlocks": load.blocks, "tokensPerBlock": load.block_tokens}
        step = {"iter": 1, "numActiveRequests": load.running, "numQueuedRequests": load.waiting, "kvCacheStats": cache}
        return () if drained is load else ({**step, "iter": 0, "numActiveRequests": 99}, step)

    def refused(self, body: Any) -> Sequence[Step] | None:
        fault = (
            table.fault(TABLE["request"], body)
            or table.fault(TABLE["stream_options"], body.get("stream_options") or {})
            or table.fault(TABLE["response_format"], body.get("response_format") or {})
            or next((f"missing `{name}`" for name in ("model", "prompt") if name not in body), None)
            or ("logprobs is not supported" if body.get("logprobs") else None)
        )
        return None if fault is None else plain(400, {"error": fault})

    def failing(self, status: int, words: str) -> Sequence[Step]:
        body = {"object": "error", "message": words, "type": "BadRequestError", "param": None, "code": status}
        table.conforms(TABLE["error"], body)
        return plain(status, body)

    def asked(self, body: Any) -> Asked:
        form = body.get("response_format") or {}
        return Asked(
            prompt=body["prompt"],
            limit=body["max_tokens"],
            stop_ids=frozenset(body.get("stop_token_ids") or ()),
            never=frozenset(int(token) for token, bias in (body.get("logit_bias") or {}).items() if bias <= NEVER),
            ignore_end=body.get("ignore_eos", False),
            grammar=form.get("ebnf"),
            settings=body,
        )

    def events(self, asked: Asked, parts: Sequence[list[int]], finish: str) -> list[object]:
        keeps = asked.settings.get("include_stop_str_in_output", False)
        events: list[object] = []
        made = 0
        for at, part in enumerate(parts):
            last = at == len(parts) - 1
            stopped = finish == "stop" and last
            reason = part[-1] if stopped and part[-1] in asked.stop_ids else None
            shown = part[:-1] if (reason is not None and not keeps) or (stopped and self.hides_end and part[-1] == END) else part
            made += len(shown)
            choice = {
                "index": 0,
                "text": "" if asked.settings.get("detokenize") is False else "text",
                "token_ids": shown if asked.settings.get("detokenize") is False else None,
                "logprobs": None,
                "finish_reason": finish if last else None,
                "stop_reason": reason,
                "avg_decoded_tokens_per_iter": None,
            }
            table.conforms(TABLE["choice"], choice)
            events.append(self._chunk(asked, [choice], None))
        if (asked.settings.get("stream_options") or {}).get("include_usage"):
            told = usage(asked, made)
            table.conforms(TABLE["usage"], told)
            events.append(self._chunk(asked, [], told))
        return events

    def _chunk(self, asked: Asked, choices: list[dict[str, Any]], told: dict[str, object] | None) -> dict[str, object]:
        model = asked.settings["model"]
        chunk = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": model, "choices": choices, "usage": told}
        table.conforms(TABLE["answer"], chunk)
        return chunk
