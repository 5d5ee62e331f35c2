"""Metrics that are folds over the events, one module a group: each has a `GROUP` that makes it of what labels may say."""
