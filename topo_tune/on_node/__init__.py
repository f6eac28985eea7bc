"""What is sent to a node and runs there: single files, standard library only (the bench agent adds torch).

They run under the node's Python, 3.8 or newer, and import nothing of topo-tune but their siblings. Each has a
`main(stdin)` that reads its request from `stdin` and prints answers behind the marker of `connect/program.py`.
"""
