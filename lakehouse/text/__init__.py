"""Text for people and for servers: quoting, escaping, spelling."""
