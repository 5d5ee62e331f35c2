"""One runnable file a local engine: `python -m engines.launch.KIND --model FILE --port N`.

Each serves loopback only, unless `--host` says otherwise.
"""
