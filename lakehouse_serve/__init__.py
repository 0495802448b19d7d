"""The Iceberg REST catalog over the catalog's rows, for engines that only read (`lakehouse serve`).

Requests flow app → storage | answers → reading | moments → tokens | grants | signature.
"""
