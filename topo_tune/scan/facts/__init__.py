"""One file a fact, sorted by what it is about: what to ask a node, and a pure parser for the answer."""
