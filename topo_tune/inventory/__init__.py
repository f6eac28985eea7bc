"""1: cluster file -> Inventory."""
