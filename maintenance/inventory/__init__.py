"""What the lake holds, who uses it, and the session that looks."""
