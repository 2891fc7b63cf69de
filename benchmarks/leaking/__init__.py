"""Attacks that try to read training data out of what travels: `benchmarks/leaks.py`."""
