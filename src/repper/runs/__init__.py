"""Run folders: one run, many beside each other, and clients who join later."""
