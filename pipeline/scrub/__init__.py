"""The scrub job: verify every frame of the logs of some nodes, and compare the nodes."""
