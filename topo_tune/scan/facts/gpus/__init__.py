"""GPUs: what `nvidia-smi` and NVML say of them, and how they are joined."""
