"""The only modules that know every stage: they join them, and leave each stage's record in the run folder.

`cluster` reaches the nodes, `journey` goes from the cluster file to the recommendation, `rolling` from the
recommendation to the nodes' files and back.
"""
