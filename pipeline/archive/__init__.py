"""Archives: Parquet files that hold the frames of a log, and the job that appends to them."""
