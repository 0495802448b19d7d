"""`python -m scaffold.docs` writes the current diagrams to docs/data-vault.md."""

import re

from lakehouse.declarations import Declarations, load_declarations
from lakehouse.settings import load_settings
from scaffold.diagram import diagram

PAGE = "docs/data-vault.md"
_DIAGRAM = re.compile(r"(<!-- diagram of (\w+) -->\n```mermaid\n).*?(```\n)", re.DOTALL)


def with_diagrams(page: str, declared: Declarations) -> str:
    """The page with the current diagram in each `<!-- diagram of <source> -->` block."""
    return _DIAGRAM.sub(lambda block: block[1] + diagram(declared, block[2]) + block[3], page)


if __name__ == "__main__":
    settings = load_settings()
    page = settings.project_dir / PAGE
    page.write_text(with_diagrams(page.read_text(), load_declarations(settings)))
