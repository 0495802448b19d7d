"""Writes the pages into the checkout."""

from lakehouse.settings import PROJECT_DIR
from lakehouse_cli.reference.pages import PAGES

if __name__ == "__main__":
    for name, page in PAGES.items():
        (PROJECT_DIR / "docs" / "reference" / name).write_text(page())
