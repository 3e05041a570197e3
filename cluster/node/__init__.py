"""One running node of a cluster: `node` builds, starts and stops its parts; each of the others is one part.

A part is handed the parts or protocols that its constructor names, and touches nothing else; `components` connects
them.
"""
