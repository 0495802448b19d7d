"""A shop: five stores, fifteen products, ten customers, and the sales a simulator makes of them."""
