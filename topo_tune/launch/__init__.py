"""Start a program on N nodes."""
