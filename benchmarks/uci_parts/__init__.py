"""The parts of `benchmarks/uci.py`."""
