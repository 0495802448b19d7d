"""A shop with five stores, fifteen products and ten customers, and a simulator of its sales."""
