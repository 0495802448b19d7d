"""The contents of the lake and their users, and the session that reads them."""
