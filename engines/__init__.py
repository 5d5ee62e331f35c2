"""Engine adapters: how each kind of engine is asked, and how its answer is read."""
