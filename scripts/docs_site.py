"""MkDocs hook: puts the repository's other pages into the site, and files that pages link to.

README.md becomes the overview; CHANGELOG.md, CONTRIBUTING.md, SECURITY.md and docker/README.md are pages, too. A link
from a page to another file of the repository leads to a page that shows the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "docker/README.md": "docker/README.md",
}  # page of the repository -> page of the site
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", ".json": "json"}
_LINK = re.compile(r"(?<!!)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages outside of docs/, and a page for each file that a page links to."""
    texts = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    texts |= {source: (ROOT / source).read_text() for source in PAGES}
    shown: set[str] = set()
    for source, text in texts.items():
        shown |= {target for target in _targets(source, text) if _is_shown(target)}
        page = PAGES.get(source) or source.removeprefix("docs/")
        old = files.get_file_from_path(page)
        if old is not None:
            files.remove(old)
        files.append(File.generated(config, page, content=_rewritten(source, page, text)))
    for target in sorted(shown):
        shown_file = File.generated(config, _page_of(target), content=_source_page(target))
        shown_file.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(shown_file)
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the design notes in the navigation, in their order."""
    notes = sorted((ROOT / "docs" / "design").glob("*.md"))
    (project,) = (entry["Project"] for entry in config.nav or () if "Project" in entry)
    project.append({"Design notes": [f"design/{note.name}" for note in notes]})
    return config


def _targets(source: str, text: str) -> Iterator[str]:
    """The repository's files that a page links to, as paths from its top."""
    for match in _LINK.finditer(text):
        yield os.path.normpath(PurePosixPath(source).parent / match[1])


def _is_shown(target: str) -> bool:
    """Whether a link's target is a file of the repository that is not a page by itself."""
    return (ROOT / target).is_file() and not target.startswith("docs/") and target not in PAGES


def _page_of(target: str) -> str:
    """The page of the site that a file of the repository is on."""
    if target in PAGES:
        return PAGES[target]
    return target.removeprefix("docs/") if target.startswith("docs/") else f"source/{target}.md"


def _rewritten(source: str, page: str, text: str) -> str:
    """A page's text with its links as the site has them."""

    def link(match: re.Match[str]) -> str:
        target = os.path.normpath(PurePosixPath(source).parent / match[1])
        if not (ROOT / target).is_file():
            return match[0]
        return f"]({os.path.relpath(_page_of(target), PurePosixPath(page).parent)}{match[2] or ''})"

    images = text.replace("](docs/pictures/", "](pictures/").replace('"docs/pictures/', '"pictures/')
    return _LINK.sub(link, images)


def _source_page(target: str) -> str:
    text = (ROOT / target).read_text()
    return f"# {target}\n\n````{LANGUAGES.get(Path(target).suffix, 'text')}\n{text}\n````\n"
