"""The Spark pipeline: what reads the cluster's log into Spark and writes it from there."""
