"""Mirrors, `mirror_<source>.<table>`: the present of each table as a plain table, all of a source at one cut."""
