"""A benchmark harness that compares metric-learning losses fairly."""

__version__ = "0.1.0"
