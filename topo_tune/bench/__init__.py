"""4: nodes and settings -> launches."""
