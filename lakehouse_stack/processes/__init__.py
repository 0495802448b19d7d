"""Processes, and the operating system user that they run as."""
