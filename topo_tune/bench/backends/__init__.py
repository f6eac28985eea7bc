"""What makes numbers: real NCCL, gloo on CPUs, or the replay of a recorded surface."""
