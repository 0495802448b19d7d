"""Hooks of the documentation's site: pages from outside docs/, links to them, and lists as GitHub reads them."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

OUTSIDE = {  # file of the checkout → page of the site
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "NOTICE": "project/notice.md",
    "dbt_project/README.md": "project/dbt-project.md",
    "lakehouse_project/cdc_vault/README.md": "project/dbt-package.md",
}
ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages from outside docs/."""
    for name, page in OUTSIDE.items():
        text = (ROOT / name).read_text()
        files.append(File.generated(config, page, content=text if name.endswith(".md") else _listed(text)))
    return files


def on_page_markdown(text: str, page: Any, config: Any, files: Any) -> str:
    """Links among files of the checkout become links among pages of the site."""
    here = page.file.src_uri
    name = next((name for name, target in OUTSIDE.items() if target == here), f"docs/{here}")
    return "\n".join(_nested(LINK.sub(lambda link: _link(link, name, here), text).split("\n")))


def _link(link: re.Match[str], name: str, here: str) -> str:
    """A link of the file `name` as one of the page `here`; code of the checkout is no page, and is named only."""
    text, target, heading = link[1], link[2], link[3] or ""
    file = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    page = OUTSIDE.get(file, file.removeprefix("docs/") if file.startswith("docs/") else None)
    if page is None:
        return text if (ROOT / file).exists() else link[0]
    return f"[{text}]({posixpath.relpath(page, posixpath.dirname(here) or '.')}{heading})"


def _nested(lines: list[str]) -> Iterator[str]:
    """Lists nest by two or three spaces on GitHub, and by four in Python's Markdown."""
    fence: int | None = None  # how far the code is indented that a line is in
    for line in lines:
        depth = len(line) - len(line.lstrip(" "))
        moved = depth if fence is None else min(fence, depth)
        yield " " * (moved // 2 * 4) + line[moved:]
        if line.lstrip().startswith("```"):
            fence = depth if fence is None else None


def _listed(text: str) -> str:
    return f"# Licences\n\n```text\n{text}```\n"
