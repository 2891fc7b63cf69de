"""Pages link to what is there, and the reference has every name of the Python interface."""

import re
from pathlib import Path

import pytest

import repper

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "examples/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def anchors(path):
    """What a git forge and the site make of headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_reference_has_every_public_name():
    text = (ROOT / "docs/reference.md").read_text()
    documented = re.findall(r"^::: repper\.(\w+)$", text, re.M)
    assert sorted(documented) == sorted(repper.__all__)


def test_the_start_page_leads_to_every_guide():
    text = (ROOT / "docs/index.md").read_text()
    guides = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert guides <= set(re.findall(r"\]\((\w+\.md)\)", text))


def test_every_example_is_listed():
    text = (ROOT / "examples/README.md").read_text()
    files = {path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".toml")}
    assert files == set(re.findall(r"^\| \[(\w+\.\w+)\]\(", text, re.M))


def named_files():
    """Files and packages that the pages and the pictures of the architecture name."""
    for page in PAGES:
        if page.name != "CHANGELOG.md" and "results" not in page.parts:
            for name in re.findall(r"`([\w-]+/[\w/.-]*\.py)`", page.read_text()):
                yield page.name, name
    for picture in (ROOT / "docs").glob("architecture-*.svg"):
        for text in re.findall(r'class="file"[^>]*>([^<]*)<', picture.read_text()):
            for name in re.findall(r"\b[\w/]+\.py\b|\b\w+/(?!\w)", text):
                yield picture.name, name


def test_files_that_pages_name_are_there():
    found = list(named_files())
    assert len(found) > 60
    places = (ROOT, ROOT / "src" / "repper", ROOT / "docs")
    gone = [
        one
        for one in found
        if one[1] != "checkpoint/" and not any((place / one[1]).exists() for place in places)
    ]
    assert gone == []
