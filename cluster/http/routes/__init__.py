"""One module for each group of HTTP routes.

A handler takes the parts that it needs from `NodeApi`; it never starts or stops the node.
"""
