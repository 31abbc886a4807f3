"""What the study tables share: columns with their descriptions, the files of a run, how a table is written."""
