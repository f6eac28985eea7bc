"""The PCI tree, from /sys and from every form of `lspci`."""
