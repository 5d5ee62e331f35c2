"""Grafana's dashboards, from which `make dashboards` writes `grafana/*.json`.

One module a dashboard; `parts` has the kinds of panel, `questions` the panels that answer an operator's questions. Nothing at run
time imports this package, and it is not in the wheel: the JSON is.
"""
