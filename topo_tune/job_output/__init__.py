"""What jobs print, read: labels of launchers, NCCL's lines, and the tables and JSON files of nccl-tests. Pure.

Saved files (`scan/`) and runs that are under way (`bench/backends/nccl_tests.py`) are read by the same parsers.
"""
