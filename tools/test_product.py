#!/usr/bin/env python3
"""Tests of tools/product."""

import importlib.machinery
import importlib.util
import unittest
from pathlib import Path

LOADER = importlib.machinery.SourceFileLoader("product", str(Path(__file__).with_name("product")))
product = importlib.util.module_from_spec(importlib.util.spec_from_loader("product", LOADER))
LOADER.exec_module(product)


class Product(unittest.TestCase):
    def test_names_that_do_not_exist_are_reported(self):
        packages, sources = set(product.FORBIDDEN), ["\n".join(product.TEXTS)]
        self.assertEqual(product.missing(packages, sources), [])
        self.assertEqual(product.missing(packages - {"millrace-lab"}, sources), ["millrace-lab"])
        for text in product.TEXTS:
            others = [other for other in product.TEXTS if other != text]
            self.assertEqual(product.missing(packages, others), [repr(text)])

    def test_a_text_may_be_divided_into_lines(self):
        first, rest = product.TEXTS[0].split(" ", 1)
        sources = [f'"{first} \\\n        {rest}"', *product.TEXTS[1:]]
        self.assertEqual(product.missing(set(product.FORBIDDEN), sources), [])

    def test_forbidden_packages_are_found_by_their_whole_name(self):
        graph = "millrace-cli v1\nmillrace-read-read v1 (/x)\nmillrace-lab-book v1\nmillrace-plot feature \"x\"\n"
        self.assertEqual(product.forbidden(graph), ['millrace-plot feature "x"', "millrace-read-read v1 (/x)"])


if __name__ == "__main__":
    unittest.main()
