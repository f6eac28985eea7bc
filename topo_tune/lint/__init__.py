"""What is wrong in a file of NCCL settings, for a given NCCL version: pure functions of its text."""
