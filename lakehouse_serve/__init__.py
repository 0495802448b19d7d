"""The Iceberg REST catalog over the catalog's rows, for engines that only read (`lakehouse serve`).

Requests flow app → objects | answers → relations → reading | grants | cuts | tokens | signature.
"""
