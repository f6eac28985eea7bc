"""1: cluster file -> Inventory.

::

    file ── host_file ──────────────────────────────────────────┐
      │                                                         ├─> Inventory
      └──── yaml_file ── convert ── build (nodes, sizes) ───────┘
           values+lines  ClusterFile  what types do not check
"""

from topo_tune.inventory.read import read_inventory
from topo_tune.inventory.schema import cluster_file_schema

__all__ = ["cluster_file_schema", "read_inventory"]
