"""What changes an update on its way: transforms that hide or shorten it, and attacks."""
