"""The Spark data source: batch and streaming reads of the log as rows."""
