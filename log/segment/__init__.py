"""Segments on disk: the store and index files, the mark, and how frames are found and read."""
