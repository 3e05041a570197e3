"""A simulator of whole clusters: the shipped core, log and applier on simulated clocks, networks and disks."""
