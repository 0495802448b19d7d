"""One module per question: what is done, what is measured, and beside which peer."""
