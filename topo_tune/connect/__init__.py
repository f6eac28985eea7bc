"""One host: reached locally, over SSH, or from a recorded transcript; and many of them side by side."""
