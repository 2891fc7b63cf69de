"""What everything else stands on: errors in one sentence, files, limits, random streams."""
