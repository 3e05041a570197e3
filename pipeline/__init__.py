"""The Spark pipeline: what reads the cluster's log into Spark."""

from .source.registration import register

__all__ = ["register"]
