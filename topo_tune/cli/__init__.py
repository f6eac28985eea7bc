"""The command line: options -> records -> one call -> text -> exit code."""
