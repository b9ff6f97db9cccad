"""Tests of check.py, on small pages and sites that are written to a temporary folder."""

import tempfile
import unittest
from pathlib import Path

import check


class Fixture(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()
        parts = "".join(f"# {part}\n" for part in check.PARTS)
        self.texts = {
            "docs/SUMMARY.md": f"# Summary\n[M](README.md)\n{parts}[P](p.md)\n[I](guide/install.md)\n",
            "docs/README.md": "# M\n```sh\nrun\n```\n",
            "docs/guide/install.md": "# I\n```sh\nrun\n```\n",
            "docs/p.md": "# P\n## Some `code`, and more\n",
            "docs/lab/SUMMARY.md": "[L](README.md)\n",
            "docs/lab/README.md": "# L\n",
        }


    def problems(self, **pages):
        self.texts.update({f"docs/{name}.md": text for name, text in pages.items()})
        for name, text in self.texts.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        (self.root / "x.rs").touch()
        return list(check.check_pages(self.root, self.texts))

    def site(self, **files):
        for name, text in files.items():
            (self.root / name.replace("__", ".")).write_text(text)
        return sorted(check.check_site(self.root))


class Pages(Fixture):
    def test_correct_pages_have_no_problem(self):
        text = "# P\n[a](README.md) [b](#p) [c](https://x.y/z) `[d](no)`\n```text\n[e](no)\n```\n"
        text += "| a | `b\\|c` |\n|---|---|\n"
        self.assertEqual(self.problems(p=text), [])

    def test_links(self):
        text = "# P\n[a](no.md) [b](#no) [c](README.md#no) [d](../x.rs)\n\n[e]: none.md\n"
        self.assertEqual(
            self.problems(p=text),
            ["docs/p.md: there is no no.md", "docs/p.md: #no: docs/p.md has no such heading"]
            + ["docs/p.md: README.md#no: docs/README.md has no such heading"]
            + ["docs/p.md: ../x.rs is not in the site", "docs/p.md: there is no none.md"],
        )

    def test_an_anchor_of_a_heading_with_code(self):
        self.assertEqual(self.problems(README="# M\n[a](p.md#some-code-and-more)\n"), [])

    def test_markdown_that_is_shown_differently(self):
        cases = {
            "```sh\nx\n": "a block of code has no end",
            "a <NAME> b": "line 2: HTML, or a placeholder that is not code",
            "a ` b": "a backquote has no partner",
            "| a | b |\n|---|---|\n| `a|b` | c |": "the rows of a table have different numbers of cells: | a | b |",
            "## P": "two headings have the anchor p",
        }
        for text, problem in cases.items():
            self.assertEqual(self.problems(p=f"# P\n{text}\n"), [f"docs/p.md: {problem}"])

    def test_names_of_files(self):
        text = "# P\n`docs/p.md --x`, `docs/{p,q}.md`, `crates/*`, `docs/q.md`"
        self.assertEqual(self.problems(p=text), ["docs/p.md: there is no docs/q.md"])

    def test_a_page_that_no_summary_lists(self):
        self.assertEqual(self.problems(q="# Q\n"), ["docs/SUMMARY.md: docs/q.md is missing"])

    def test_a_page_that_is_listed_twice_and_parts_in_another_order(self):
        parts = "".join(f"# {part}\n" for part in reversed(check.PARTS))
        self.assertEqual(
            self.problems(SUMMARY=f"# Summary\n[M](README.md)\n[P](p.md)\n{parts}[P](p.md) [I](guide/install.md)\n"),
            ["docs/SUMMARY.md: docs/p.md is listed twice, or is not in this book"]
            + ["docs/SUMMARY.md: the parts are not Start, Guide, Operate, Reference, Development"],
        )

    def test_a_recipe_that_no_test_executes(self):
        self.assertEqual(
            self.problems(README="# M\n```sh\nrun  # fast\nwalk\n```\n"), ["docs/README.md: no test executes: walk"]
        )


class Site(Fixture):
    def test_links_and_files(self):
        problems = self.site(
            index__html='<h1 id="a"><a href="#a">x</a><a href="b.html#no">y</a><img src="c.svg">',
            b__html='<a href="index.html#a">x</a><a href="https://x.y">y</a>',
            book__toml="",
        )
        self.assertEqual(
            problems,
            ["book.toml is not to be published", "index.html: b.html#no: no such anchor"]
            + ["index.html: there is no c.svg"],
        )


if __name__ == "__main__":
    unittest.main()
