"""The study's answer as one HTML page: verdicts, figures, numbers and provenance, with nothing outside of the file."""
