//! The directory tree that the names of all exports form: the pseudo file system of NFSv4 (RFC 8881 section 7.3).

use crate::{
    handle::{HandleBytes, PseudoSealer},
    siphash::siphash,
};

/// Key of the numbers of directories, which must be the same after a restart and an upgrade.
const NUMBER_KEY: [u64; 2] = [0x6d69_6c6c_7261_6365, 0x7073_6575_646f_0000];
/// Key of the change attribute.
const CHANGE_KEY: [u64; 2] = [0x6d69_6c6c_7261_6365, 0x6368_616e_6765_0000];
/// The lowest number of a directory. READDIR cookies are these numbers, and 0 to 2 are reserved.
const LOWEST_NUMBER: u64 = 3;

/// A directory of the tree.
pub(crate) struct Node {
    /// The name of the directory in its parent; empty for the root.
    pub(crate) name: Vec<u8>,
    /// Derived from the path: file ID and READDIR cookie; below 2^63.
    pub(crate) number: u64,
    /// `None` for the root.
    pub(crate) parent: Option<usize>,
    /// Subdirectories in the order of their numbers.
    pub(crate) children: Vec<usize>,
    /// The export with this path, as its position in the table.
    pub(crate) export: Option<usize>,
}

/// The tree of one export table. Directories are identified by their position; the root is 0.
pub(crate) struct Namespace {
    nodes: Vec<Node>,
    /// The directory of each export.
    mounts: Vec<usize>,
    sealer: PseudoSealer,
    change: u64,
}

fn number(path: &[u8]) -> u64 {
    (siphash(NUMBER_KEY, path) >> 1).max(LOWEST_NUMBER)
}

impl Namespace {
    /// Position of the root directory.
    pub(crate) const ROOT: usize = 0;

    /// Builds the tree of the exports `names`, which are absolute paths, in the order of the table.
    /// `settings` is a text that differs when the exports or their access rules differ.
    pub(crate) fn new<'n>(
        names: impl Iterator<Item = &'n str>,
        settings: &str,
        secret: Option<[u64; 2]>,
    ) -> Self {
        let root =
            Node { name: Vec::new(), number: number(b"/"), parent: None, children: Vec::new(), export: None };
        let sealer = PseudoSealer::new(secret);
        let change = siphash(CHANGE_KEY, settings.as_bytes());
        let mut tree = Self { nodes: vec![root], mounts: Vec::new(), sealer, change };
        for (export, name) in names.enumerate() {
            let mut at = Self::ROOT;
            let mut path = Vec::new();
            for part in name.split('/').filter(|part| !part.is_empty()) {
                path.push(b'/');
                path.extend_from_slice(part.as_bytes());
                at = tree.child(at, part.as_bytes()).unwrap_or_else(|| tree.add(at, part, &path));
            }
            tree.nodes[at].export = Some(export);
            tree.mounts.push(at);
        }
        let numbers: Vec<u64> = tree.nodes.iter().map(|node| node.number).collect();
        for node in &mut tree.nodes {
            node.children.sort_by_key(|child| numbers[*child]);
        }
        tree
    }

    fn add(&mut self, parent: usize, name: &str, path: &[u8]) -> usize {
        let at = self.nodes.len();
        self.nodes.push(Node {
            name: name.as_bytes().to_vec(),
            number: number(path),
            parent: Some(parent),
            children: Vec::new(),
            export: None,
        });
        self.nodes[parent].children.push(at);
        at
    }

    /// The directory at a position of this tree.
    pub(crate) fn node(&self, at: usize) -> &Node {
        &self.nodes[at]
    }

    /// The subdirectory `name`.
    pub(crate) fn child(&self, dir: usize, name: &[u8]) -> Option<usize> {
        self.node(dir).children.iter().copied().find(|child| self.node(*child).name == name)
    }

    /// The directory of the export at `export` in the table.
    pub(crate) fn mount(&self, export: usize) -> usize {
        self.mounts[export]
    }

    /// The directory and its ancestors, up to the root.
    pub(crate) fn ancestors(&self, at: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(at), |at| self.node(*at).parent)
    }

    /// The names on the path from the directory `above` to `below`.
    pub(crate) fn path(&self, above: usize, below: usize) -> Vec<&[u8]> {
        let mut names: Vec<_> =
            self.ancestors(below).take_while(|at| *at != above).map(|at| &self.node(at).name[..]).collect();
        names.reverse();
        names
    }

    /// All directories below `dir`, in no particular order.
    pub(crate) fn descendants(&self, dir: usize) -> impl Iterator<Item = usize> {
        let mut pending = self.node(dir).children.clone();
        std::iter::from_fn(move || {
            let next = pending.pop()?;
            pending.extend_from_slice(&self.node(next).children);
            Some(next)
        })
    }

    /// The change attribute of all directories: it differs after a reload with other exports or access rules.
    pub(crate) fn change(&self) -> u64 {
        self.change
    }

    /// The handle of a directory.
    pub(crate) fn seal(&self, at: usize) -> HandleBytes {
        self.sealer.seal(self.node(at).number)
    }

    /// The number of the directory with this handle, which may no longer exist; `None` if the handle is
    /// invalid.
    pub(crate) fn open(&self, handle: &[u8]) -> Option<u64> {
        self.sealer.open(handle)
    }

    /// The directory with this number.
    pub(crate) fn find(&self, number: u64) -> Option<usize> {
        self.nodes.iter().position(|node| node.number == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(names: &[&str]) -> Namespace {
        Namespace::new(names.iter().copied(), &names.join(","), None)
    }

    fn lookup(tree: &Namespace, path: &str) -> Option<usize> {
        path.split('/')
            .filter(|p| !p.is_empty())
            .try_fold(Namespace::ROOT, |dir, name| tree.child(dir, name.as_bytes()))
    }

    #[test]
    fn prefixes_of_export_names_are_directories() {
        let t = tree(&["/a/b/c", "/a", "/d"]);
        let export = |path| lookup(&t, path).map(|at| t.node(at).export);
        assert_eq!(export("/"), Some(None));
        assert_eq!(export("/a"), Some(Some(1)));
        assert_eq!(export("/a/b"), Some(None));
        assert_eq!(export("/a/b/c"), Some(Some(0)));
        assert_eq!(export("/d"), Some(Some(2)));
        assert_eq!(export("/a/x"), None);
        let (a, c) = (t.mount(1), t.mount(0));
        assert_eq!(t.path(a, c), [b"b", b"c"]);
        assert_eq!(t.path(Namespace::ROOT, a), [b"a"]);
        assert_eq!(t.ancestors(c).last(), Some(Namespace::ROOT));
        assert_eq!(t.descendants(a).count(), 2);
    }

    #[test]
    fn an_export_may_be_the_root() {
        let t = tree(&["/", "/a"]);
        assert_eq!((t.mount(0), t.node(Namespace::ROOT).export), (Namespace::ROOT, Some(0)));
        assert_eq!(t.node(t.mount(1)).parent, Some(Namespace::ROOT));
    }

    #[test]
    fn handles_survive_a_reload_with_other_exports() {
        let (old, new) = (tree(&["/a/b"]), tree(&["/z", "/a/c", "/a/b"]));
        let handle = old.seal(lookup(&old, "/a").unwrap());
        assert_eq!(new.open(&handle).and_then(|n| new.find(n)), lookup(&new, "/a"));
        assert_ne!(old.change(), new.change());
        let gone = tree(&["/z"]);
        assert!(gone.open(&handle).is_some_and(|n| gone.find(n).is_none()));
    }

    #[test]
    fn cookies_follow_the_order_of_children() {
        let t = tree(&["/a", "/b", "/c", "/d"]);
        let numbers: Vec<u64> = t.node(0).children.iter().map(|c| t.node(*c).number).collect();
        assert!(numbers.is_sorted() && numbers[0] >= LOWEST_NUMBER && numbers[3] < 1 << 63);
    }
}
