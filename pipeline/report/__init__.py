"""The report job: what a log says about a cluster's life, as a page."""
