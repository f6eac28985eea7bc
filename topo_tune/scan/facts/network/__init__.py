"""RDMA devices, interfaces, RoCE settings, routes."""
