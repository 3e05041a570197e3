"""The Spark pipeline: a source, a sink, and jobs over a cluster's log."""

from .source.registration import register

__all__ = ["register"]
