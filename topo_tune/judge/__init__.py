"""Baseline launches and new launches -> Verdict. Pure; shared by the guard and later by `check`."""
