"""The report job: a cluster's history from its log, as a page."""
