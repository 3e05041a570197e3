"""The Spark pipeline: what reads the cluster's log into Spark."""

from .registration import register

__all__ = ["register"]
