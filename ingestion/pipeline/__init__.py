"""The steps of a cycle: survey the tables, read changes, load tables at a point, replay what was kept, publish."""
