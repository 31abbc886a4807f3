"""All ranks of a job: their records matched, on one clock, and put together into tables."""
