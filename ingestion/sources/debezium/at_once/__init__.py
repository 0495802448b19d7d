"""Messages of a topic read all at once, in columns, where they are ordinary; one by one is how the others are read."""
