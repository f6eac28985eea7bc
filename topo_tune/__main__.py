"""`python -m topo_tune` is `topo-tune`."""

from topo_tune.cli.app import main

main()
