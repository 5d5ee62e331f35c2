"""vLLM's `/v1/completions` with token ids, in the shapes that tests/data/engines/vllm has from the real one."""

from collections.abc import Mapping, Sequence
from typing import Any

from fakes.conforming import Asked, ConformingEngine, gauges, plain, usage


class FakeVllm(ConformingEngine):
    """It ignores fields that it does not know, as the real one does."""

    def __init__(self) -> None:
        super().__init__()
        self.answers |= {"/version": {"version": "0.32.0"}, "/v1/models": {"data": [{"id": "tiny", "max_model_len": 8192}]}}

    def reports(self) -> Mapping[str, object]:
        if not self.measures:
            return {"/metrics": plain(404, {"detail": "Not Found"})}
        load = self.load
        about = f'{{block_size="{load.block_tokens}",cache_dtype="auto",engine="0",num_gpu_blocks="{load.blocks}"}}'
        named = {
            "vllm:num_requests_running": load.running,
            "vllm:num_requests_waiting": load.waiting,
            "vllm:num_requests_waiting_by_reason": 99,
            "vllm:kv_cache_usage_perc": load.kv_usage,
        }
        return {"/metrics": gauges(named, '{engine="0",model_name="tiny"}') + gauges({"vllm:cache_config_info": 1.0}, about)}

    def asked(self, body: Any) -> Asked:
        return Asked(
            prompt=body["prompt"],
            limit=body["max_tokens"],
            stop_ids=frozenset(body.get("stop_token_ids", ())),
            least=body.get("min_tokens", 0),
            top=body.get("logprobs"),
            grammar=body.get("structured_outputs", {}).get("grammar"),
            settings=body,
        )

    def events(self, asked: Asked, parts: Sequence[list[int]], finish: str) -> list[object]:
        events: list[object] = []
        for at, part in enumerate(parts):
            logprobs = None
            if asked.top is not None:
                named = [{f"token_id:{token + rank}": -0.5 - rank for rank in range(asked.top)} for token in part]
                logprobs = {"token_logprobs": [-0.5] * len(part), "top_logprobs": named}
            last = finish if at == len(parts) - 1 else None
            choice = {"index": 0, "text": "", "logprobs": logprobs, "finish_reason": last, "token_ids": part}
            events.append({"choices": [choice]})
        events.append({"choices": [], "usage": usage(asked, sum(map(len, parts)))})
        return events
