"""The Spark pipeline: a source, a sink, and jobs over a cluster's log."""

from .executed.marking import mark_executed
from .source.registration import register

__all__ = ["mark_executed", "register"]
