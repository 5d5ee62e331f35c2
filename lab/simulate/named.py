"""The policies by their names."""

from collections.abc import Mapping

from lab.simulate.peers import DynamoLike, LlmdLike, LmetricLike, LmetricPrecise, SglangLike
from lab.simulate.policies import LeastOutstanding, Make, RoundRobin, Session

POLICIES: Mapping[str, Make] = {
    "round_robin": RoundRobin,
    "least_outstanding": LeastOutstanding,
    "session": Session,
    "sglang_like": SglangLike,
    "llmd_like": LlmdLike,
    "dynamo_like": DynamoLike,
    "lmetric_like": LmetricLike,
    "lmetric_precise": LmetricPrecise,
}
