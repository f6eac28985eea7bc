"""3: Scan -> Topology."""
