"""Reading the log: records in pages, and consumers, whose cursors say where they were."""
