"""What is sent to a node and runs there: standard library only (the ranks of the bench agent add torch).

Modules here run under the node's Python, 3.8 or newer, and import nothing of topo-tune but their siblings. Programs
have a `main(stdin)` that reads its request from `stdin` and prints answers behind the marker of `connect/program.py`,
which also knows what each program brings along: `collector`, `writer`, and `bench_agent` with the ranks it forks.
"""
