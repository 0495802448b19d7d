"""Starts, stops, inspects and upgrades the servers of a home, and renders the configuration of docker/."""
