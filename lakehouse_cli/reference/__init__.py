"""The reference pages that are made from code: `python -m lakehouse_cli.reference` writes them to docs/reference."""
