"""Who may ask, and how often: roles, tokens, signed requests and limits."""
