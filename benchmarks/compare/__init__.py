"""Quire beside etcd, NATS and Kafka: the same work, in turns, from the same load generator."""
