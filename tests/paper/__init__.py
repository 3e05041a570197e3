"""Readable tests: one for each rule of `docs/protocol.md`, and for sentences of the papers from which they descend."""
