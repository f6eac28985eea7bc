"""What travels between the stages: frozen structs, no input or output except their own files."""
