"""Observers of the life of requests: metrics, access log, and the bus that feeds them."""
