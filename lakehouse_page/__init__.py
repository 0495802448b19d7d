"""A page to look at: what needs attention, how far each source is, and the charts that a project declares.

It shows what `lakehouse watch` measures, and asks Trino with a reader's rights.
"""
