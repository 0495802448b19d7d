"""What loads remember of themselves, and the questions that this answers."""
