"""Commands for the servers and processes of one machine."""
