"""7: Recommendation -> files on nodes, wave by wave, with a journal."""
