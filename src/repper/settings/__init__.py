"""Settings: one frozen value of them all, its file, and the things that it names."""
