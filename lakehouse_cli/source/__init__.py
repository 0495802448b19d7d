"""Commands that read, compare or simulate sources."""
