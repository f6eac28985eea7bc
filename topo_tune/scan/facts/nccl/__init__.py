"""NCCL on the node: libraries, plugins, and every place that sets its variables."""
