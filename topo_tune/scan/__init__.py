"""2: Inventory -> Scan. Facts are pairs of a command and a pure parser."""
