"""What `make bench` measures, one file each."""
