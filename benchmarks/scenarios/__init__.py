"""The scenarios, one module per question."""
