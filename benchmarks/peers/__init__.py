"""Peers: other tools that do the same work, on the same machine in the same run."""
