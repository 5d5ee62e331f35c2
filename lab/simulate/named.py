"""The policies by their names."""

from collections.abc import Mapping

from gateway.routing.choice import Tuning
from lab.simulate.peers import DynamoLike, LlmdLike, LmetricLike, LmetricPrecise, SglangLike
from lab.simulate.policies import LeastOutstanding, Make, RoundRobin, Session
from lab.simulate.product import gateway_policy

POLICIES: Mapping[str, Make] = {
    # the gateway's own router; `cost_unheld` never holds a request back
    "cost": gateway_policy(Tuning()),
    "cost_unheld": gateway_policy(Tuning(hold_s=None)),
    "gateway_round_robin": gateway_policy(Tuning(policy="round_robin")),
    "gateway_least_outstanding": gateway_policy(Tuning(policy="least_outstanding")),
    "gateway_session": gateway_policy(Tuning(policy="session")),
    # the same ideas, and the peers', in the simulation's own words
    "round_robin": RoundRobin,
    "least_outstanding": LeastOutstanding,
    "session": Session,
    "sglang_like": SglangLike,
    "llmd_like": LlmdLike,
    "dynamo_like": DynamoLike,
    "lmetric_like": LmetricLike,
    "lmetric_precise": LmetricPrecise,
}
