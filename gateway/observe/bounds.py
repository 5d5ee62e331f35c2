"""Bounds of histograms that several groups have."""

# vLLM's bounds, so that our panels and the engines' overlay; where ours are finer, a few more stand before them.
TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
PER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
ITL_S = (0.001, 0.002, 0.005, *PER_TOKEN_S)
DURATION_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
QUEUE_S = (0.001, 0.005, 0.01, 0.05, 0.1, *DURATION_S)
# Ours: of work on the gateway's own processor.
WORK_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
