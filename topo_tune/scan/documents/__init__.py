"""One kind of saved file each, about a job or the whole cluster: how it is recognised and read."""
