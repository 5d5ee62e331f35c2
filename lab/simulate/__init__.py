"""A fleet of engines simulated event by event: what a routing policy, a size or a load would do, before anybody pays for it."""
