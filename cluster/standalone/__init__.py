"""`quire serve --standalone`: one log behind HTTP, without a cluster."""
