"""What the same work costs elsewhere, on the same machine in the same run."""
