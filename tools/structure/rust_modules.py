"""The modules of a Rust crate and the references between them, from the sources alone.

A tokenizer removes comments, literals and items under `#[cfg(test)]`. References are the paths of `use` declarations and
the paths that begin with `crate`, `self` or `super` elsewhere; re-exports are followed to the module that defines an item.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

TOKEN = re.compile(
    r"""
    (?P<skip> \s+ | //[^\n]* )
  | (?P<block> /\* )
  | (?P<raw> b?c?r(?P<hashes>\#*)" )
  | (?P<string> [bc]?"(?:[^"\\]|\\.)*" )
  | (?P<char> b?'(?:[^'\\\n]|\\(?:u\{[^}]*\}|x..|.))' )
  | (?P<lifetime> '[A-Za-z_]\w* )
  | (?P<word> (?:r\#)?[A-Za-z_]\w* )
  | (?P<number> \d[\w.]* )
  | (?P<mark> :: | . )
    """,
    re.VERBOSE | re.DOTALL,
)
ITEMS = {"struct", "enum", "union", "trait", "fn", "type", "const", "static"}


def tokens(source):
    """The words and marks of a source text, without comments and literals."""
    found, at = [], 0
    while at < len(source):
        match = TOKEN.match(source, at)
        at = match.end()
        if match["block"]:
            depth = 1
            while depth and at < len(source):
                step = re.compile(r"/\*|\*/").search(source, at)
                at = step.end() if step else len(source)
                depth += 1 if step and step[0] == "/*" else -1
        elif match["raw"]:
            end = source.find('"' + match["hashes"], at)
            at = len(source) if end < 0 else end + 1 + len(match["hashes"])
        elif match["word"]:
            found.append(match["word"].removeprefix("r#"))
        elif match["mark"]:
            found.append(match["mark"])
    return found


def closing(stream, start):
    """The index behind the bracket that closes the one at `start`."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    depth = 0
    for at in range(start, len(stream)):
        if stream[at] in pairs:
            depth += 1
        elif stream[at] in pairs.values():
            depth -= 1
            if depth == 0:
                return at + 1
    return len(stream)


def without_tests(stream):
    """Removes each item under `#[cfg(test)]` or `#[cfg(all(test, ...))]`."""
    kept, at = [], 0
    while at < len(stream):
        if stream[at] == "#" and stream[at + 1 : at + 2] == ["["]:
            end = closing(stream, at + 1)
            attribute = stream[at + 2 : end - 1]
            if attribute[:3] == ["cfg", "(", "test"] or attribute[:5] == ["cfg", "(", "all", "(", "test"]:
                at = end
                while at < len(stream) and stream[at] == "#":  # Further attributes of the item.
                    at = closing(stream, at + 1)
                while at < len(stream) and stream[at] not in (";", "{"):
                    at = closing(stream, at) if stream[at] in "([" else at + 1
                # A `use` has its group in braces and ends behind them.
                at = closing(stream, at) if stream[at : at + 1] == ["{"] else at + 1
                at += stream[at : at + 1] == [";"]
                continue
            kept += stream[at:end]
            at = end
            continue
        kept.append(stream[at])
        at += 1
    return kept


@dataclass
class Module:
    """One module: where it is, what it names, and what it refers to."""

    path: tuple
    children: set = field(default_factory=set)
    names: dict = field(default_factory=dict)  # Imported or re-exported name -> path as written.
    globs: list = field(default_factory=list)
    items: set = field(default_factory=set)
    references: list = field(default_factory=list)


def tree(stream, at):
    """The paths of a use tree that begins at `at`: pairs of path and name, and the index behind it."""
    path, found = [], []
    while True:
        token = stream[at]
        if token == "{":
            at += 1
            while stream[at] != "}":
                inner, at = tree(stream, at)
                found += [(path + p, n) for p, n in inner]
                at += stream[at] == ","
            return found, at + 1
        if token == "*":
            return [(path, "*")], at + 1
        path.append(token)
        at += 1
        if stream[at] != "::":
            break
        at += 1
    name = path[-1]
    if name == "self" and len(path) > 1:
        path.pop()
        name = path[-1]
    if stream[at] == "as":
        name = stream[at + 1]
        at += 2
    return [(path, name)], at


class Crate:
    """All modules of a crate, from its root file."""

    def __init__(self, root):
        self.modules = {}
        self._file(Path(root), (), Path(root).parent)

    def _file(self, file, path, folder):
        self._module(without_tests(tokens(file.read_text())), path, folder)

    def _child(self, folder, path, name):
        for file in (folder / f"{name}.rs", folder / name / "mod.rs"):
            if file.exists():
                return self._file(file, path + (name,), folder / name)
        raise SystemExit(f"{folder}: there is no file for the module {'::'.join(path + (name,))}")

    def _module(self, stream, path, folder):
        module = self.modules[path] = Module(path)
        at = 0
        while at < len(stream):
            token, following = stream[at], stream[at + 1 : at + 3]
            if token == "mod" and following[1:] in ([";"], ["{"]):
                name = following[0]
                module.children.add(name)
                if following[1] == ";":
                    # With `#[path = "..."]` it is a file of another crate, which is read there.
                    if stream[at - 5 : at] == ["#", "[", "path", "=", "]"]:
                        self.modules[path + (name,)] = Module(path + (name,))
                    else:
                        self._child(folder, path, name)
                    at += 3
                else:
                    end = closing(stream, at + 2)
                    self._module(stream[at + 3 : end - 1], path + (name,), folder / name)
                    at = end
            elif token == "use" and following[:1] != ["<"]:  # `use<'a>` is a bound.
                start = at + 1 + (following[0] == "::")
                found, at = tree(stream, start)
                if following[0] == "::":
                    continue
                for target, name in found:
                    module.references.append(target)
                    if name == "*":
                        module.globs.append(target)
                    elif name != "_":
                        module.names[name] = target
            elif token in ("crate", "self", "super") and following[:1] == ["::"]:
                target = [token]
                at += 1
                while stream[at : at + 1] == ["::"] and re.match(r"\w", stream[at + 1]):
                    target.append(stream[at + 1])
                    at += 2
                module.references.append(target)
            else:
                if token in ITEMS and following and re.match(r"\w", following[0]):
                    module.items.add(following[0])
                at += 1

    def _absolute(self, path, target):
        """A path as written in the module `path`, from the crate's root; None if it leads to another crate."""
        path, target = list(path), list(target)
        if target[0] == "crate":
            return target[1:]
        if target[0] in ("self", "super"):
            while target and target[0] in ("self", "super"):
                if target.pop(0) == "super":
                    path = path[:-1]
            return path + target
        module = self.modules[tuple(path)]
        if target[0] in module.children or target[0] in module.names and module.names[target[0]][0] != target[0]:
            return path + target
        return None

    def resolve(self, path, target, depth=0):
        """The module that defines what `target` names in the module `path`; None if it is in another crate."""
        target = self._absolute(path, target)
        if target is None or depth > 20:
            return None
        at = ()
        for index, segment in enumerate(target):
            module = self.modules[at]
            if segment in module.children:
                at += (segment,)
                continue
            if segment in module.names:
                through = self.resolve(at, module.names[segment] + target[index + 1 :], depth + 1)
                # A name of another crate that is imported here: what refers to it needs this module only.
                return at if through is None else through
            if segment not in module.items:
                for glob in module.globs:
                    base = self.resolve(at, glob, depth + 1)
                    if base is not None and base != at:
                        inner = self.modules[base]
                        if segment in inner.items | inner.children | set(inner.names):
                            return self.resolve(base, ["self"] + target[index:], depth + 1)
            return at
        return at

    def edges(self):
        """References between sibling modules: parent -> child -> children that it refers to, with their descendants."""
        found = {}
        for path, module in self.modules.items():
            for target in module.references:
                other = self.resolve(path, target)
                if other is None:
                    continue
                common = 0
                while common < min(len(path), len(other)) and path[common] == other[common]:
                    common += 1
                if common < len(path) and common < len(other):
                    here = found.setdefault(path[:common], {}).setdefault(path[common], {})
                    here.setdefault(other[common], set()).add(("::".join(path), "::".join(target)))
        return found


def components(graph):
    """The strongly connected components of more than one node (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(part) > 1:
                found.append(sorted(part))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found)
