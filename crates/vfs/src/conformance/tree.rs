//! Whole trees: random calls compared with a model, and concurrent calls.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

use super::{
    Capability,
    fixture::{Fixture, mode, root},
};
use crate::{Attr, FileKind, FsError, FsError::*, FsResult, Handle};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A random change of the tree. Directories and files are chosen among all created so far.
#[derive(Debug, Clone)]
enum Step {
    Create { dir: usize, name: usize },
    MakeDir { dir: usize, name: usize },
    Symlink { dir: usize, name: usize },
    Remove { dir: usize, name: usize },
    RemoveDir { dir: usize, name: usize },
    Rename { from_dir: usize, from: usize, to_dir: usize, to: usize },
    Link { file: usize, dir: usize, name: usize },
}

/// A random step, without links if their weights are 0.
fn step(symlinks: u32, links: u32) -> impl Strategy<Value = Step> {
    let at = || (0..64usize, 0..NAMES.len());
    prop_oneof![
        3 => at().prop_map(|(dir, name)| Step::Create { dir, name }),
        4 => at().prop_map(|(dir, name)| Step::MakeDir { dir, name }),
        symlinks => at().prop_map(|(dir, name)| Step::Symlink { dir, name }),
        2 => at().prop_map(|(dir, name)| Step::Remove { dir, name }),
        2 => at().prop_map(|(dir, name)| Step::RemoveDir { dir, name }),
        6 => (at(), at()).prop_map(|((from_dir, from), (to_dir, to))| Step::Rename { from_dir, from, to_dir, to }),
        links => (0..64usize, at()).prop_map(|(file, (dir, name))| Step::Link { file, dir, name }),
    ]
}

/// Expected state of the tree. Objects are numbered in order of creation.
struct Model {
    objects: Vec<Object>,
}

struct Object {
    handle: Handle,
    kind: FileKind,
    links: u32,
    entries: BTreeMap<&'static str, usize>,
    parent: usize,
}

/// The permitted errors; if empty, the call must succeed.
type PermittedErrors = Vec<FsError>;

impl Model {
    fn pick(&self, nth: usize, dirs: bool) -> usize {
        let fits = |o: &Object| (o.kind == FileKind::Directory) == dirs;
        let all: Vec<_> = (0..self.objects.len()).filter(|i| fits(&self.objects[*i])).collect();
        all.get(nth % all.len().max(1)).copied().unwrap_or(0)
    }

    fn find(&self, dir: usize, name: &str) -> Option<usize> {
        self.objects[dir].entries.get(name).copied()
    }

    fn alive(&self, id: usize) -> PermittedErrors {
        if self.objects[id].links == 0 { vec![Stale] } else { vec![] }
    }

    /// Errors of adding a name.
    fn entering(&self, dir: usize, name: &str) -> PermittedErrors {
        let mut permitted_errors = self.alive(dir);
        if self.find(dir, name).is_some() {
            permitted_errors.push(Exist);
        }
        permitted_errors
    }

    /// Errors of removing a name.
    fn leaving(&self, dir: usize, name: &str, is_dir: bool) -> PermittedErrors {
        let mut permitted_errors = self.alive(dir);
        match self.find(dir, name).map(|id| &self.objects[id]) {
            None => permitted_errors.push(NoEnt),
            Some(o) if is_dir && o.kind != FileKind::Directory => permitted_errors.push(NotDir),
            Some(o) if !is_dir && o.kind == FileKind::Directory => permitted_errors.push(IsDir),
            Some(o) if !o.entries.is_empty() => permitted_errors.push(NotEmpty),
            Some(_) => {}
        }
        permitted_errors
    }

    fn is_above(&self, upper: usize, mut lower: usize) -> bool {
        loop {
            if upper == lower {
                return true;
            }
            if self.objects[lower].parent == lower {
                return false;
            }
            lower = self.objects[lower].parent;
        }
    }

    fn renaming(&self, from_dir: usize, from: &str, to_dir: usize, to: &str) -> PermittedErrors {
        let mut permitted_errors = self.alive(from_dir);
        permitted_errors.extend(self.alive(to_dir));
        let Some(moved) = self.find(from_dir, from) else {
            permitted_errors.push(NoEnt);
            return permitted_errors;
        };
        if self.objects[moved].kind == FileKind::Directory && self.is_above(moved, to_dir) {
            permitted_errors.push(Inval);
        }
        let target = self.find(to_dir, to).filter(|t| *t != moved);
        if let Some(target) = target {
            let dirs = [moved, target].map(|id| self.objects[id].kind == FileKind::Directory);
            match dirs {
                [true, false] => permitted_errors.extend([NotDir, Exist]),
                [false, true] => permitted_errors.extend([IsDir, Exist]),
                _ => {}
            }
            if !self.objects[target].entries.is_empty() {
                permitted_errors.extend([NotEmpty, Exist]);
            }
        }
        permitted_errors
    }

    fn add(&mut self, dir: usize, name: &'static str, handle: Handle, kind: FileKind) {
        let links = 1;
        self.objects.push(Object { handle, kind, links, entries: BTreeMap::new(), parent: dir });
        let id = self.objects.len() - 1;
        self.objects[dir].entries.insert(name, id);
    }

    fn drop_link(&mut self, dir: usize, name: &str) {
        if let Some(id) = self.objects[dir].entries.remove(name) {
            self.objects[id].links -= 1;
        }
    }
}

pub(crate) fn random_calls_match_a_model(f: &Fixture) {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let weight = |capability, weight| if f.has(capability) { weight } else { 0 };
    let step = step(weight(Capability::Symlinks, 1), weight(Capability::HardLinks, 2));
    let mut round = 0;
    let round = std::cell::RefCell::new(&mut round);
    let outcome = runner.run(&prop::collection::vec(step, 1..80), |steps| {
        **round.borrow_mut() += 1;
        let name = format!("round {}", round.borrow());
        follow(f, f.subdir(&name), &steps)
    });
    if let Err(e) = outcome {
        panic!("{e}");
    }
}

fn follow(f: &Fixture, top: Handle, steps: &[Step]) -> Result<(), TestCaseError> {
    let top =
        Object { handle: top, kind: FileKind::Directory, links: 1, entries: BTreeMap::new(), parent: 0 };
    let mut m = Model { objects: vec![top] };
    for step in steps {
        let (result, permitted_errors) = execute_step(f, &mut m, step);
        match result {
            Ok(()) => prop_assert!(
                permitted_errors.is_empty(),
                "{:?} succeeded instead of {:?}",
                step,
                permitted_errors
            ),
            Err(e) => prop_assert!(
                permitted_errors.contains(&e),
                "{:?}: {:?} instead of {:?}",
                step,
                e,
                permitted_errors
            ),
        }
    }
    for o in &m.objects {
        compare(f, &m, o)?;
    }
    Ok(())
}

/// Executes a step on the file system and, if it succeeds, on the model. Returns the result and the permitted
/// errors.
fn execute_step(f: &Fixture, m: &mut Model, step: &Step) -> (FsResult<()>, PermittedErrors) {
    match *step {
        Step::Create { dir, name } => {
            let (dir, name) = (m.pick(dir, true), NAMES[name]);
            let permitted_errors = m.entering(dir, name);
            let made = f.create(&root(), &m.objects[dir].handle, name.as_bytes(), mode(0o644));
            (made.map(|c| m.add(dir, name, c.handle, FileKind::Regular)), permitted_errors)
        }
        Step::MakeDir { dir, name } => {
            let (dir, name) = (m.pick(dir, true), NAMES[name]);
            let permitted_errors = m.entering(dir, name);
            let made = f.mkdir(&root(), &m.objects[dir].handle, name.as_bytes(), 0o755);
            (made.map(|c| m.add(dir, name, c.handle, FileKind::Directory)), permitted_errors)
        }
        Step::Symlink { dir, name } => {
            let (dir, name) = (m.pick(dir, true), NAMES[name]);
            let permitted_errors = m.entering(dir, name);
            let made = f.symlink(&m.objects[dir].handle, name, b"../a");
            (made.map(|c| m.add(dir, name, c.handle, FileKind::Symlink)), permitted_errors)
        }
        Step::Remove { dir, name } => {
            let (dir, name) = (m.pick(dir, true), NAMES[name]);
            let permitted_errors = m.leaving(dir, name, false);
            (f.remove(&m.objects[dir].handle, name).map(|()| m.drop_link(dir, name)), permitted_errors)
        }
        Step::RemoveDir { dir, name } => {
            let (dir, name) = (m.pick(dir, true), NAMES[name]);
            let permitted_errors = m.leaving(dir, name, true);
            (f.rmdir(&m.objects[dir].handle, name).map(|()| m.drop_link(dir, name)), permitted_errors)
        }
        Step::Rename { from_dir, from, to_dir, to } => {
            let (from_dir, to_dir) = (m.pick(from_dir, true), m.pick(to_dir, true));
            let (from, to) = (NAMES[from], NAMES[to]);
            let permitted_errors = m.renaming(from_dir, from, to_dir, to);
            let done = f.rename(&m.objects[from_dir].handle, from, &m.objects[to_dir].handle, to);
            (done.map(|()| apply_rename(m, from_dir, from, to_dir, to)), permitted_errors)
        }
        Step::Link { file, dir, name } => {
            let (file, dir, name) = (m.pick(file, false), m.pick(dir, true), NAMES[name]);
            let mut permitted_errors = m.entering(dir, name);
            permitted_errors.extend(m.alive(file));
            match m.objects[file].kind {
                FileKind::Directory => permitted_errors.extend([Inval, IsDir, Perm]),
                _ if m.objects[file].links == 0 => permitted_errors.push(NoEnt),
                _ => {}
            }
            let done = f.link(&m.objects[file].handle, &m.objects[dir].handle, name);
            let done = done.map(|()| {
                m.objects[dir].entries.insert(name, file);
                m.objects[file].links += 1;
            });
            (done, permitted_errors)
        }
    }
}

fn apply_rename(m: &mut Model, from_dir: usize, from: &str, to_dir: usize, to: &'static str) {
    let Some(moved) = m.find(from_dir, from).filter(|id| m.find(to_dir, to) != Some(*id)) else { return };
    m.drop_link(to_dir, to);
    m.objects[from_dir].entries.remove(from);
    m.objects[to_dir].entries.insert(to, moved);
    m.objects[moved].parent = to_dir;
}

/// Compares an object with the model.
fn compare(f: &Fixture, m: &Model, o: &Object) -> Result<(), TestCaseError> {
    let attr = f.op(f.fs.getattr(&o.handle));
    if o.links == 0 {
        prop_assert_eq!(attr, Err(Stale));
        return Ok(());
    }
    let attr = attr.unwrap();
    prop_assert_eq!(attr.kind, o.kind);
    if o.kind != FileKind::Directory {
        prop_assert_eq!(attr.nlink, o.links);
        return Ok(());
    }
    let names: Vec<_> = o.entries.keys().map(|n| (*n).to_owned()).collect();
    prop_assert_eq!(f.names(&o.handle), names);
    let is_dir = |id: &&usize| m.objects[**id].kind == FileKind::Directory;
    let dirs = o.entries.values().filter(is_dir).count() as u32;
    prop_assert!(attr.nlink == 2 + dirs || attr.nlink == 1, "{} links, {} directories", attr.nlink, dirs);
    for (name, id) in &o.entries {
        prop_assert_eq!(f.lookup(&o.handle, name).unwrap(), m.objects[*id].handle);
        if m.objects[*id].kind == FileKind::Directory {
            prop_assert_eq!(f.lookup(&m.objects[*id].handle, "..").unwrap(), o.handle);
        }
    }
    Ok(())
}

/// A pseudo-random generator for each thread.
struct Choices(SplitMix64);

impl Choices {
    fn next(&mut self, below: usize) -> usize {
        (self.0.next_u64() % below as u64) as usize
    }
}

pub(crate) fn concurrent_calls_keep_the_tree_consistent(f: &Fixture) {
    let dirs: Vec<_> = ["p", "q"].iter().map(|n| f.subdir(n)).collect();
    std::thread::scope(|s| {
        for thread in 1..=4u64 {
            let dirs = dirs.clone();
            s.spawn(move || make_random_calls(f, dirs, Choices(SplitMix64::seed_from_u64(thread))));
        }
    });
    check_consistency(f);
}

/// Makes random calls; with concurrent changes, only matching errors may occur.
fn make_random_calls(f: &Fixture, mut dirs: Vec<Handle>, mut rng: Choices) {
    let mut files = vec![f.dir];
    let links = f.has(Capability::HardLinks);
    for step in 0..f.stress_calls {
        let (dir, name) = (dirs[rng.next(dirs.len())], NAMES[rng.next(NAMES.len())]);
        let (to_dir, to) = (dirs[rng.next(dirs.len())], NAMES[rng.next(NAMES.len())]);
        let file = files[rng.next(files.len())];
        let result = match rng.next(12) {
            0 | 1 => f.create(&root(), &dir, name.as_bytes(), mode(0o644)).map(|c| files.push(c.handle)),
            2 | 3 => f.mkdir(&root(), &dir, name.as_bytes(), 0o777).map(|c| dirs.push(c.handle)),
            4 => f.remove(&dir, name),
            5 => f.rmdir(&dir, name),
            6..=8 => f.rename(&dir, name, &to_dir, to),
            9 if links => f.link(&file, &dir, name),
            9 | 10 => f.lookup(&dir, "..").map(drop),
            _ => {
                let limits = crate::ReadDirLimits { max_entries: 9, max_name_bytes: 999, plus: true };
                f.op(f.fs.readdir(&root(), &dir, 0, [0; 8], limits)).map(drop)
            }
        };
        if let Err(e) = result {
            let expected = [NoEnt, Exist, NotDir, IsDir, NotEmpty, Stale, Inval, Perm];
            assert!(expected.contains(&e), "step {step}: {e:?}");
        }
        if dirs.len() > 24 {
            dirs.remove(2 + rng.next(20));
        }
    }
}

/// Walks the whole tree and checks links and parents.
fn check_consistency(f: &Fixture) {
    let mut found: HashMap<u64, (Attr, u32)> = HashMap::new();
    let mut queue = vec![f.fs.root()];
    while let Some(dir) = queue.pop() {
        let fileid = f.attr(&dir).fileid;
        let mut subdirs = 0;
        for name in f.names(&dir) {
            let child = f.lookup(&dir, &name).unwrap();
            let attr = f.attr(&child);
            found.entry(attr.fileid).or_insert((attr, 0)).1 += 1;
            if attr.kind == FileKind::Directory {
                subdirs += 1;
                let parent = f.lookup(&child, "..").unwrap();
                assert_eq!(f.attr(&parent).fileid, fileid, "`..` of {name}");
                queue.push(child);
            }
        }
        let nlink = f.attr(&dir).nlink;
        assert!(nlink == subdirs + 2 || nlink == 1, "{nlink} links with {subdirs} directories");
    }
    for (attr, entries) in found.values() {
        let links = if attr.kind == FileKind::Directory { 1 } else { attr.nlink };
        assert_eq!(*entries, links, "{attr:?}");
    }
}
