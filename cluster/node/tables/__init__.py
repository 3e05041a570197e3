"""The tables that the applier keeps beside the machine, on one node: lookups, writes of cursors, and their lag."""
