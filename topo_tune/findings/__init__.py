"""What is wrong on the nodes: rules that are pure functions of a scan."""
