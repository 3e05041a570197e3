"""Histories in which the members change: the operator's wishes, nodes that join, and the rules that are checked."""
