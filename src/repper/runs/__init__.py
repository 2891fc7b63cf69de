"""Run folders: one run, comparisons of several, and clients who join later."""
