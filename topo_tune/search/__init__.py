"""5: space and evaluate() -> SearchTrace."""
