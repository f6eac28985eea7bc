"""CPU, memory, limits, kernel: what the operating system gives a process."""
