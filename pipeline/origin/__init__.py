"""Where records come from: the files of a data directory, or the nodes of a cluster."""
