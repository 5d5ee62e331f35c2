"""What an operator looks at while it runs: `/metrics` as a view of models, engines, queue and failures, and `interlock top`.

`scrape`, `window`, `troubles` and `view` are pure: two scrapes in, one `View` out; the admin port's page shows the same view.
"""
