"""topo-tune: a measurably faster GPU cluster, with the proof, or nothing changed.

The package is laid out as the journey of the data::

    inventory   cluster file            -> Inventory
    scan        Inventory               -> Scan
    topology    Scan                    -> Topology
    bench       nodes + NCCL settings   -> Launch (a measured run)
    search      space + evaluate()      -> SearchTrace
    recommend   SearchTrace + launches  -> Recommendation
    rollout     Recommendation          -> journal

`records/` holds what travels between the stages, `pipeline.py` joins them, `connect/` and `launch/` reach nodes,
`on_node/` is sent to nodes and runs there, `job_output/` reads what jobs print, `judge/` and `stats/` decide,
`report/` and `cli/` speak to people.
"""

__version__ = "0.1.0"
