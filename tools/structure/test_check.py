"""Tests of check.py, on small crates that are written to a temporary folder."""

import tempfile
import unittest
from pathlib import Path

import check
from rust_modules import Crate, components, tokens, without_tests


class Fixture(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def write(self, **files):
        for name, text in files.items():
            file = self.root / (name.replace("__", "/") + ".rs")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def cycles(self, parent=()):
        return components(Crate(self.root / "lib.rs").edges().get(parent, {}))


class Cycles(Fixture):
    def test_two_modules_that_use_each_other(self):
        self.write(lib="mod a; mod b;", a="use crate::b::B; struct A;", b="use super::a::A; struct B;")
        self.assertEqual(self.cycles(), [["a", "b"]])

    def test_one_direction_is_no_cycle(self):
        self.write(lib="mod a; mod b; use a::A;", a="use crate::b::B;", b="struct B;")
        self.assertEqual(self.cycles(), [])

    def test_groups_nested_in_groups(self):
        self.write(
            lib="mod a; mod b; mod c;",
            a="use crate::{b::{B, self}, c::C as D};",
            b="use std::io; struct B;",
            c="use {std::fmt, super::{a::*}};",
        )
        self.assertEqual(self.cycles(), [["a", "c"]])

    def test_a_path_in_an_expression_and_in_a_type(self):
        self.write(lib="mod a; mod b;", a="fn f() { crate::b::g() }", b="fn g(_: &super::a::A) {}")
        self.assertEqual(self.cycles(), [["a", "b"]])

    def test_a_name_that_the_parent_re_exports(self):
        self.write(lib="mod a; mod b; pub use b::B; pub use a::*;", a="use crate::B; pub struct A;", b="use crate::A; pub struct B;")
        self.assertEqual(self.cycles(), [["a", "b"]])

    def test_through_a_third_module_and_below_a_folder(self):
        self.write(lib="mod a; mod b; mod c;", a="mod deep;", a__deep="use crate::b::B;", b="use crate::c;", c="use crate::a;")
        self.assertEqual(self.cycles(), [["a", "b", "c"]])

    def test_siblings_in_a_folder_with_mod_rs(self):
        self.write(lib="mod a;", a__mod="mod x; mod y;", a__x="use super::y;", a__y="use crate::a::x;")
        self.assertEqual(self.cycles(("a",)), [["x", "y"]])
        self.assertEqual(self.cycles(), [])

    def test_inline_modules(self):
        self.write(lib="mod a { pub mod x { use super::super::b; } } mod b { use crate::a; }")
        self.assertEqual(self.cycles(), [["a", "b"]])

    def test_a_child_that_uses_its_parent_is_no_cycle(self):
        self.write(lib="mod a; use a::A; struct L;", a="use super::L; use crate::*;")
        self.assertEqual(self.cycles(), [])

    def test_code_for_tests_comments_and_literals_do_not_count(self):
        self.write(
            lib="mod a; mod b;",
            a="use crate::b::B; struct A;",
            b='''// use crate::a::A;
            /* use crate::a::A; /* nested */ crate::a */
            struct B; const T: &str = r#"crate::a::A"#; const C: char = '"'; fn f<'x>(_: &'x str) {}
            #[cfg(test)] use crate::a::A;
            #[cfg(all(test, unix))] #[allow(x)] fn g() -> [u8; 2] { crate::a::A }
            #[cfg(test)] mod tests { use crate::a::*; }
            #[cfg(test)] mod more;''',
        )
        self.assertEqual(self.cycles(), [])

    def test_code_behind_code_for_tests_counts(self):
        self.write(lib="mod a; mod b;", a="#[cfg(test)] mod tests; use crate::b;", b="#[cfg(test)] use crate::{c, d}; use crate::a;")
        self.assertEqual(self.cycles(), [["a", "b"]])


class Sources(unittest.TestCase):
    def test_tokens(self):
        self.assertEqual(tokens("a::b /* c */ 'x' 'l r\"d\" b\"e\" r#type"), ["a", "::", "b", "type"])

    def test_a_module_with_a_path_is_not_read(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "lib.rs").write_text('#[path = "../other.rs"]\nmod a;\nuse a::B;')
            self.assertEqual(set(Crate(Path(folder) / "lib.rs").modules), {(), ("a",)})

    def test_a_struct_for_tests_ends_with_its_semicolon(self):
        self.assertEqual(without_tests(tokens("#[cfg(test)] struct A(u8); b")), ["b"])


class Order(Fixture):
    ARCHITECTURE = "| crate | x |\n|---|---|\n| `low` | |\n| `one`, `two` | |\n\nText.\n"

    def manifest(self, name, text, shelf="crates"):
        folder = self.root / shelf / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "Cargo.toml").write_text(f'[package]\nname = "m-{name}"\n{text}')

    def test_table(self):
        self.assertEqual(check.crate_table(self.ARCHITECTURE), ["low", "one", "two"])

    def test_a_dependency_on_a_crate_below(self):
        self.manifest("low", '[dependencies]\nm-two.workspace = true\nserde = "1"\n')
        self.manifest("one", '[dependencies]\nother = { package = "m-low", path = "../low" }\n')
        self.manifest("two", '[target."cfg(unix)".dev-dependencies]\nm-two = { path = "." }\n')
        self.manifest("new", "")
        found, missing = check.wrong_order(self.root, check.crate_table(self.ARCHITECTURE))
        self.assertEqual(found, ["low -> two"])
        self.assertEqual(len(missing), 1)

    def test_a_dependency_on_another_shelf(self):
        self.manifest("low", "", "testing")
        self.manifest("one", "[dependencies]\nm-low.workspace = true\n")
        self.manifest("two", "[dev-dependencies]\nm-low.workspace = true\n")
        self.manifest("plot", "[dependencies]\nm-low.workspace = true\n", "lab")
        _, found = check.wrong_order(self.root, ["low", "one", "plot", "two"])
        self.assertEqual(found, ["crates/one depends on testing/low"])
        self.manifest("two", "[dev-dependencies]\nm-plot.workspace = true\n")
        _, found = check.wrong_order(self.root, ["low", "one", "plot", "two"])
        self.assertEqual(found[1:], ["crates/two depends on lab/plot"])

    def test_a_crate_above_ops_that_names_the_codec(self):
        self.manifest("nfs", "")
        self.manifest("copy", "[dependencies]\nm-nfs.workspace = true\n")
        self.manifest("fuse", "[dev-dependencies]\nm-nfs.workspace = true\n")
        self.manifest("cli", "")
        self.manifest("server", "[dependencies]\nm-nfs.workspace = true\n")
        for crate, line in (("cli", "use millrace_client::{Error, nfs::v3::Status};"), ("fuse", "use millrace_client::ops;")):
            (self.root / "crates" / crate / "src").mkdir()
            (self.root / "crates" / crate / "src/a.rs").write_text(line)
        found = list(check.codec_users(self.root))
        self.assertEqual([f.split()[0] for f in found], ["crates/copy", "crates/cli/src/a.rs"])

    def test_a_product_that_names_the_read_read_design(self):
        for shelf, crate, line in (
            ("crates", "one", "enum Design { ReadRead }"),
            ("crates", "two", "// as in the Read-Read design"),
            ("crates", "three", "poll_read_ready(cx); already(read_write)"),
            ("lab", "four", "struct ReadRead;"),
        ):
            self.manifest(crate, "", shelf)
            (self.root / shelf / crate / "src").mkdir()
            (self.root / shelf / crate / "src/a.rs").write_text(line)
        found = list(check.designs(self.root))
        self.assertEqual([f.split()[0] for f in found], ["crates/one/src/a.rs", "crates/two/src/a.rs"])

    def test_a_library_that_is_not_used(self):
        self.manifest("one", '[dependencies]\nmd-5 = "1"\nm-low.workspace = true\nslab = "1"\n[dev-dependencies]\nslab = "1"\ntar = "1"\n')
        (self.root / "crates/one/src").mkdir()
        (self.root / "crates/one/tests").mkdir()
        (self.root / "crates/one/src/p.md").write_text("use tar::Builder;")
        (self.root / "crates/one/src/lib.rs").write_text('use md5::Md5; #[doc = include_str!("p.md")] mod a;')
        (self.root / "crates/one/tests/a.rs").write_text("use m_low::A; use slab::Slab;")
        found = list(check.unused_dependencies(self.root))
        self.assertEqual([f.split()[2::2][:2] for f in found], [["m-low", "dependencies,"], ["slab", "dependencies,"]])

    def test_a_file_that_does_not_exist(self):
        (self.root / "crates/one/src").mkdir(parents=True)
        (self.root / "crates/one/src/a.rs").write_text("")
        (self.root / "docs/dev/design").mkdir(parents=True)
        (self.root / "ARCHITECTURE.md").write_text("`a.rs`, `one/src/{a,b}.rs` and `c.rs`")
        (self.root / "docs/dev/design/x.md").write_text("`one/src/`, `docs/dev/`, `two/`, `text with /`, `src/d.rs`")
        found = list(check.missing_files(self.root))
        self.assertEqual(
            [f.split()[:3:2] for f in found],
            [["ARCHITECTURE.md", "c.rs,"], ["ARCHITECTURE.md", "one/src/b.rs,"]]
            + [["docs/dev/design/x.md", name] for name in ("src/d.rs,", "two/,")],
        )

    def test_exceptions_may_only_shrink(self):
        listed = {"a: b, c": 1, "d: e, f": 2}
        found = list(check.compare(["a: b, c", "g: h, i"], listed, "cycle"))
        self.assertEqual(len(found), 2)
        self.assertIn("g: h, i", found[0])
        self.assertIn("exceptions:2", found[1])

    def test_update_removes_and_shortens_and_never_adds(self):
        text = "# Why.\na: b, c, d # x\ne: f, g # y\nh -> i # z\n"
        self.assertEqual(check.updated(text, ["a: b, d", "j: k, l", "h -> i"]), "# Why.\na: b, d # x\nh -> i # z\n")

    def test_names_with_braces(self):
        self.assertEqual(list(check.names_of(" `a/{b,c/,d}.rs`, `e.rs` ")), ["a/b.rs", "a/c/", "a/d.rs", "e.rs"])


if __name__ == "__main__":
    unittest.main()
