#!/usr/bin/env python3
"""Checks the pages of this repository, or the site that mdbook has made of them. docs/dev/ci.md explains it.

    tools/site/check.py         the pages that git does not ignore
    tools/site/check.py SITE    the files in the directory SITE
"""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
BOOKS = ("docs/lab", "docs")
# Parts of the site, in this order.
PARTS = ["Start", "Guide", "Operate", "Reference", "Development"]
# Directories in which files named by pages must exist.
NAMED = (".ci/", "crates/", "docs/", "lab/", "packaging/", "testing/", "tools/")
FIRST = "docs/README.md"
# Pages whose commands and programs are executed by tests, or are examples in a tested help.
EXECUTED = [f"docs/guide/{page}.md" for page in ("first-server", "install", "linux", "mount", "python", "server")]
PUBLISHED = {".css", ".html", ".ico", ".js", ".png", ".svg", ".ttf", ".txt", ".woff2"}
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)


def blocks(text):
    """The page without its blocks of code, whose lines become empty, and the blocks: (language, lines)."""
    prose, found, inside = [], [], False
    for line in text.splitlines():
        if line.startswith("```"):
            if not inside:
                found.append((line[3:], []))
            inside = not inside
        elif inside:
            found[-1][1].append(line)
        prose.append("" if inside or line.startswith("```") else line)
    return "\n".join(prose), found


def without_code(prose):
    return re.sub(r"`[^`]*`", "", prose)


def anchors(prose):
    """The anchors of the headings, as GitHub and mdbook make them."""
    titles = [line.lstrip("#").strip() for line in prose.splitlines() if re.match("#+ ", line)]
    return ["".join(c for c in t.lower().replace(" ", "-") if c.isalnum() or c in "-_") for t in titles]


def book(page):
    """The book that has the page, or None."""
    return next((b for b in BOOKS if page.startswith(f"{b}/")), None)


def target(root, page, link):
    """The file in the repository that a relative link names, and its anchor."""
    file, _, anchor = link.partition("#")
    return ((root / page).parent / unquote(file) if file else root / page).resolve(), anchor


def check_links(root, page, texts):
    for match in LINK.finditer(without_code(blocks(texts[page])[0])):
        link = match[1] or match[2]
        if urlsplit(link).scheme:
            continue
        path, anchor = target(root, page, link)
        if not path.exists() or not path.is_relative_to(root):
            yield f"there is no {link}"
            continue
        name = str(path.relative_to(root))
        if book(page) and not book(name):
            yield f"{link} is not in the site"
        if anchor and anchor not in anchors(blocks(texts.get(name, ""))[0]):
            yield f"{link}: {name} has no such heading"


def check_markdown(page, text):
    """What GitHub, mdbook and CommonMark show differently from what is meant."""
    if text.count("\n```") % 2:
        yield "a block of code has no end"
    prose = blocks(text)[0]
    for number, line in enumerate(prose.splitlines(), 1):
        if re.search(r"<(?!!--|https?://|/?(details|summary)>)[A-Za-z/]", re.sub(r"`[^`]*`", "", line)):
            yield f"line {number}: HTML, or a placeholder that is not code"
    if prose.count("`") % 2:
        yield "a backquote has no partner"
    for table in re.findall(r"(?:^\|.*\n)+", prose + "\n", re.MULTILINE):
        # A `|` ends a cell also in code, unless it is escaped.
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        if len(widths) > 1:
            yield f"the rows of a table have different numbers of cells: {table.splitlines()[0]}"
    titles = anchors(prose)
    for title in sorted({t for t in titles if titles.count(t) > 1}):
        yield f"two headings have the anchor {title}"


def check_names(root, text):
    """Files that the page names must exist. Arguments may follow; braces stand for several."""
    for name in re.findall(r"`([^`]+)`", blocks(text)[0]):
        if name.startswith(NAMED) and "*" not in name and not (root / re.split(r"[ {]", name)[0]).exists():
            yield f"there is no {name}"


def check_summary(name, texts):
    """The summary of a book lists each of its pages once."""
    listed = [f"{name}/{link}" for link, _ in LINK.findall(texts[f"{name}/SUMMARY.md"])]
    pages = {page for page in texts if book(page) == name and not page.endswith("/SUMMARY.md")}
    for page in sorted(pages - set(listed)):
        yield f"{page} is missing"
    for page in sorted({page for page in listed if listed.count(page) > 1 or page not in pages}):
        yield f"{page} is listed twice, or is not in this book"
    if name == "docs" and re.findall(r"^# (.*)", texts["docs/SUMMARY.md"], re.MULTILINE)[1:] != PARTS:
        yield f"the parts are not {', '.join(PARTS)}"


def check_recipes(texts):
    """Each line of code in the first page, but for comments, is in a page that is executed."""
    lines = {code(line) for page in EXECUTED for _, found in blocks(texts.get(page, ""))[1] for line in found}
    for _, found in blocks(texts[FIRST])[1]:
        yield from (f"no test executes: {line}" for line in found if code(line) not in lines)


def code(line):
    return line.split("  #")[0].rstrip()


def pages(root):
    listed = subprocess.check_output(["git", "ls-files", "-zco", "--exclude-standard", "*.md"], cwd=root, text=True)
    names = [name for name in listed.split("\0") if name]
    return {name: (root / name).read_text() for name in names if (root / name).exists()}


def check_pages(root, texts):
    for page, text in texts.items():
        for problem in [*check_links(root, page, texts), *check_markdown(page, text), *check_names(root, text)]:
            yield f"{page}: {problem}"
    for name in BOOKS:
        yield from (f"{name}/SUMMARY.md: {problem}" for problem in check_summary(name, texts))
    yield from (f"{FIRST}: {problem}" for problem in check_recipes(texts))


class Page(HTMLParser):
    """The links and the anchors of a page of the site."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for key, value in attributes:
            if key == "id":
                self.anchors.add(value)
            elif key in ("href", "src") and value:
                self.links.append(value)


def check_site(site):
    files = {file for file in site.rglob("*") if file.is_file()}
    extra = [file for file in files if file.suffix not in PUBLISHED and file.name != ".nojekyll"]
    yield from (f"{file.relative_to(site)} is not to be published" for file in extra)
    # The page without a fixed place has links that begin at the root of the server.
    documents = [f for f in files if f.suffix == ".html" and f.name not in ("404.html", "toc.html")]
    found = {file: Page(file.read_text()) for file in documents}
    for file, page in found.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            path = (file.parent / unquote(url.path)).resolve() if url.path else file
            path = path / "index.html" if path.is_dir() else path
            if path not in files:
                yield f"{file.relative_to(site)}: there is no {link}"
            elif url.fragment and path in found and unquote(url.fragment) not in found[path].anchors:
                yield f"{file.relative_to(site)}: {link}: no such anchor"


def main():
    if sys.argv[1:]:
        problems = list(check_site(Path(sys.argv[1]).resolve()))
    else:
        problems = list(check_pages(ROOT, pages(ROOT)))
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
