"""The stages of `benchmarks/promises.py`."""
