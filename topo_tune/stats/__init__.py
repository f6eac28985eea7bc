"""Pure numbers: summaries, intervals, comparisons."""
