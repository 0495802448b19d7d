"""Where changes come from: one folder per kind of source."""
