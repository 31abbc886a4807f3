"""What observations share: choosing evidence, judging it, and the files and lines that verdicts are written to."""
