"""The lake as of a moment: which one a warehouse's name means, its cut, and tables at their snapshots then."""
