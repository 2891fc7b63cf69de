"""What `make docs` adds to mkdocs: links that work on a git forge work in the site, too.

Pages link to files beside docs/, such as `../examples/my_method.py`. Each linked file becomes
a page of the site: Markdown as it is, code as a listing.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
LOADED = r"""<(?:script|img|source|iframe|link rel="(?:stylesheet|icon|preconnect)")[^>]*"""
ELSEWHERE = re.compile(LOADED + r"""(?:src|href)="(?:https?:)?//[^"]*""")
LANGUAGES = {".py": "python", ".toml": "toml", ".conf": "nginx", ".service": "ini"}


def on_files(files, config):
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    waiting += ["CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if not path.startswith("docs/"):
            files.append(_page(config, path))
        if path.endswith(".md"):
            found = {_target(path, link) for link in LINK.findall((ROOT / path).read_text())}
            new = {path for path in found - seen if not _in_docs(path) and (ROOT / path).is_file()}
            seen |= new
            waiting += sorted(new)
    return files


def on_page_markdown(markdown, page, config, files):
    path = _path(page.file.src_uri)
    if not path.endswith(".md"):
        return markdown

    def moved(match):
        uri = _uri(_target(path, match[0]))
        if files.get_file_from_path(uri) is None:
            return match[0]  # mkdocs says what is wrong with it
        return posixpath.relpath(uri, posixpath.dirname(page.file.src_uri))

    return LINK.sub(moved, markdown)


def on_post_page(output, page, config):
    """Refuse a page that a reader without a network would not see as it is."""
    if found := ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from another host: {found[0]}")
    return output


def _page(config, path):
    if path.endswith(".md"):
        return File.generated(config, path, abs_src_path=str(ROOT / path))
    language = LANGUAGES.get(Path(path).suffix, "text")
    text = f"# {path}\n\n```{language}\n{(ROOT / path).read_text()}```\n"
    return File.generated(config, _uri(path), content=text)


def _in_docs(path):
    return path.startswith("docs/")


def _target(path, link):
    """The linked file as a path from the root of the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _uri(path):
    """A file's place among the site's sources."""
    if _in_docs(path):
        return path.removeprefix("docs/")
    return path if path.endswith(".md") else f"{path}.md"


def _path(uri):
    """The file that a page of the site was made of."""
    for path in (f"docs/{uri}", uri, uri.removesuffix(".md")):
        if (ROOT / path).is_file():
            return path
    raise FileNotFoundError(uri)
