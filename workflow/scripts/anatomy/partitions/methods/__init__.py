"""One partitioning method per file; `anatomy.partitions` says what a file must have."""
