"""Erases a data subject from the lake, proves that nothing of it is left, and keeps it so.

`lives` says which rows are the subject's, `places` which tables hold such rows, `rows` what becomes of them, `rewrite`
and `forget` make it so on disk, `proof` looks at every object that is there, `strays` for what nobody knows,
`tombstones` remember it, `steps` and `run` are the order of it all.
"""
