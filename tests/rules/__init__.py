"""A file a rule of `docs/protocol.md`: what it forbids, and beside it the sentence of the paper that it comes from.

`raft` is "In Search of an Understandable Consensus Algorithm" (extended version), `ongaro` chapter 4 of "Consensus:
Bridging Theory and Practice", `vr` "Viewstamped Replication Revisited"; KIPs are Kafka's. Their words: a term or view
is an epoch, an entry a record, a primary a leader, an offset or op-number an index. Rules 16, 18 and 19 have files of
their own in `tests/replication` (`test_installs`, `test_expiry`, `test_epochs`, `test_second_leaders`).
"""
