"""One file a fact: what to ask a node, and a pure parser for the answer."""
