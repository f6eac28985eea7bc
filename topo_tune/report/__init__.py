"""Any record -> text for people."""
