"""Segments on disk: the store and index files, the mark, and how records are found and read in them."""
