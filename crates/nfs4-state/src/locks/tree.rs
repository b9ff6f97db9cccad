//! A balanced tree of ranges that may overlap, which finds a range of another owner in logarithmic time.
//!
//! It is an AVL tree in the order of `(start, owner)`. Each node has the two largest ends of its subtree that have
//! different owners: the largest end of all owners but one is one of them, so that many ranges of the owner that asks
//! cost no time.

use std::cmp::Ordering;

use crate::visits::count_visits;

/// No node.
const NIL: u32 = u32::MAX;

/// Bytes `start` to `last`, both included, of a lock owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnedRange {
    pub(crate) start: u64,
    pub(crate) last: u64,
    /// Number of the lock owner, not 0.
    pub(crate) owner: u64,
}

/// The end of a range, and its owner; there is none if the owner is 0.
type End = (u64, u64);

#[derive(Debug)]
struct Node {
    range: OwnedRange,
    /// The largest end of the subtree, and the largest of other owners than that one's.
    ends: [End; 2],
    left: u32,
    right: u32,
    height: u8,
}

/// The ranges. A removed node is used again; the memory is freed with the last one.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: u32,
}

impl Default for Tree {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), root: NIL }
    }
}

fn order(a: &OwnedRange, b: &OwnedRange) -> Ordering {
    (a.start, a.owner).cmp(&(b.start, b.owner))
}

/// Adds an end to the largest two.
fn add_end(ends: &mut [End; 2], end: End) {
    let [first, second] = ends;
    if end.1 == 0 {
        return;
    }
    if end.1 == first.1 {
        first.0 = first.0.max(end.0);
    } else if first.1 == 0 || end.0 > first.0 {
        *second = *first;
        *first = end;
    } else if second.1 == 0 || end.0 > second.0 {
        *second = end;
    }
}

impl Tree {
    fn node(&self, n: u32) -> &Node {
        &self.nodes[n as usize]
    }

    fn node_mut(&mut self, n: u32) -> &mut Node {
        &mut self.nodes[n as usize]
    }

    fn height(&self, n: u32) -> u8 {
        if n == NIL { 0 } else { self.node(n).height }
    }

    /// Derives the height and the ends of a node from its children.
    fn update(&mut self, n: u32) {
        let Node { range, left, right, .. } = *self.node(n);
        let mut ends = [(range.last, range.owner), (0, 0)];
        for child in [left, right].into_iter().filter(|child| *child != NIL) {
            self.node(child).ends.into_iter().for_each(|end| add_end(&mut ends, end));
        }
        let height = 1 + self.height(left).max(self.height(right));
        let node = self.node_mut(n);
        (node.ends, node.height) = (ends, height);
    }

    fn rotate_right(&mut self, n: u32) -> u32 {
        let top = self.node(n).left;
        self.node_mut(n).left = self.node(top).right;
        self.update(n);
        self.node_mut(top).right = n;
        self.update(top);
        top
    }

    fn rotate_left(&mut self, n: u32) -> u32 {
        let top = self.node(n).right;
        self.node_mut(n).right = self.node(top).left;
        self.update(n);
        self.node_mut(top).left = n;
        self.update(top);
        top
    }

    /// Balances a node after a change of one child. Returns the node in its position.
    fn balance(&mut self, n: u32) -> u32 {
        let Node { left, right, .. } = *self.node(n);
        if self.height(left) > self.height(right) + 1 {
            if self.height(self.node(left).left) < self.height(self.node(left).right) {
                self.node_mut(n).left = self.rotate_left(left);
            }
            return self.rotate_right(n);
        }
        if self.height(right) > self.height(left) + 1 {
            if self.height(self.node(right).right) < self.height(self.node(right).left) {
                self.node_mut(n).right = self.rotate_right(right);
            }
            return self.rotate_left(n);
        }
        self.update(n);
        n
    }

    /// Adds a range. Its owner has no other one with the same start.
    pub(crate) fn insert(&mut self, range: OwnedRange) {
        let node =
            Node { range, ends: [(range.last, range.owner), (0, 0)], left: NIL, right: NIL, height: 1 };
        let new = match self.free.pop() {
            Some(n) => {
                *self.node_mut(n) = node;
                n
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.root = self.insert_under(self.root, new);
    }

    fn insert_under(&mut self, n: u32, new: u32) -> u32 {
        if n == NIL {
            return new;
        }
        if order(&self.node(new).range, &self.node(n).range) == Ordering::Less {
            self.node_mut(n).left = self.insert_under(self.node(n).left, new);
        } else {
            self.node_mut(n).right = self.insert_under(self.node(n).right, new);
        }
        self.balance(n)
    }

    /// Removes the range with the start and the owner of `range`, if there is one.
    pub(crate) fn remove(&mut self, range: &OwnedRange) {
        self.root = self.remove_under(self.root, range);
        if self.root == NIL {
            *self = Self::default();
        }
    }

    fn remove_under(&mut self, n: u32, range: &OwnedRange) -> u32 {
        if n == NIL {
            return NIL;
        }
        let Node { left, right, .. } = *self.node(n);
        match order(range, &self.node(n).range) {
            Ordering::Less => self.node_mut(n).left = self.remove_under(left, range),
            Ordering::Greater => self.node_mut(n).right = self.remove_under(right, range),
            Ordering::Equal => {
                self.free.push(n);
                if left == NIL || right == NIL {
                    return if left == NIL { right } else { left };
                }
                let (rest, next) = self.take_first(right);
                let node = self.node_mut(next);
                (node.left, node.right) = (left, rest);
                return self.balance(next);
            }
        }
        self.balance(n)
    }

    /// Detaches the first node of a subtree. Returns the rest and the node.
    fn take_first(&mut self, n: u32) -> (u32, u32) {
        let Node { left, right, .. } = *self.node(n);
        if left == NIL {
            return (right, n);
        }
        let (rest, first) = self.take_first(left);
        self.node_mut(n).left = rest;
        (self.balance(n), first)
    }

    /// Whether the subtree has a range of another owner than `owner` that ends at `start` or after it.
    fn reaches(&self, n: u32, start: u64, owner: u64) -> bool {
        n != NIL && self.node(n).ends.iter().any(|end| end.1 != 0 && end.1 != owner && end.0 >= start)
    }

    /// The first range of another owner than `owner` that overlaps bytes `start` to `last`.
    pub(crate) fn find_other(&self, start: u64, last: u64, owner: u64) -> Option<OwnedRange> {
        let mut n = self.root;
        while self.reaches(n, start, owner) {
            count_visits(1);
            let Node { range, left, right, .. } = self.node(n);
            if self.reaches(*left, start, owner) {
                // If this range does not overlap, it starts after `last`, and so do all to its right.
                n = *left;
            } else if range.start > last {
                return None;
            } else if range.owner != owner && range.last >= start {
                return Some(*range);
            } else {
                n = *right;
            }
        }
        None
    }

    /// Checks the balance, the order and the ends of all nodes.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        fn visit(tree: &Tree, n: u32) -> (u8, Vec<OwnedRange>) {
            if n == NIL {
                return (0, Vec::new());
            }
            let node = tree.node(n);
            let ((l, mut all), (r, right)) = (visit(tree, node.left), visit(tree, node.right));
            all.push(node.range);
            all.extend(right);
            assert!(l.abs_diff(r) <= 1 && node.height == 1 + l.max(r), "unbalanced");
            let largest = all.iter().map(|range| range.last).max().unwrap();
            assert_eq!(node.ends[0].0, largest);
            let others = all.iter().filter(|range| range.owner != node.ends[0].1);
            let second = others.map(|range| range.last).max();
            assert_eq!((node.ends[1].1 != 0).then_some(node.ends[1].0), second);
            (node.height, all)
        }
        let (_, all) = visit(self, self.root);
        assert!(all.is_sorted_by(|a, b| order(a, b) == Ordering::Less));
        assert_eq!(all.len() + self.free.len(), self.nodes.len());
    }
}
