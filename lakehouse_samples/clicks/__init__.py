"""A topic of page views."""
