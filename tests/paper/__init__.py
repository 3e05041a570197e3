"""One readable test per rule of `docs/protocol.md`, and per sentence of the papers from which the rules descend."""
