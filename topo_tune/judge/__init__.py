"""Baseline launches and new launches -> Verdict. Pure; shared by the guard and later by `check`."""

from topo_tune.judge.throughput import EDGE, FEWEST_LAUNCHES, IMPROVED_EDGE, judge_throughput

__all__ = ["EDGE", "FEWEST_LAUNCHES", "IMPROVED_EDGE", "judge_throughput"]
