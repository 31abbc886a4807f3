"""One rank alone: from its events to a `record` of all that the job's tables need of it, small enough to keep."""
