"""Watches the whole system from outside and tells people: alerts to declared targets, metrics to Prometheus."""
