//! Changes of the same objects by two clients, in all interleavings of their calls, compared with a model.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)] // Tests, not input from a peer.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::ErrorKind,
    path::Path,
    sync::{Arc, Mutex},
};

use millrace_client::{AtomicFile, Client, is_temporary_name};
use millrace_objects::{Mode, Objects, publish};
use millrace_server::{Config, Running, Server};
use millrace_vfs::*;
use tokio::sync::oneshot;

/// An operation on the objects of a directory. A put has the content.
#[derive(Debug, Clone, Copy)]
enum Action {
    Put(&'static str, u8, Mode),
    Copy(&'static str, &'static str, Mode),
    Rename(&'static str, &'static str, Mode),
    Delete(&'static str),
}

/// The result of an action.
type Outcome = Result<(), ErrorKind>;

/// The names of a directory with the contents.
type Contents = BTreeMap<String, u8>;

// The model.

/// The names of a directory, with the number of the file and its content.
#[derive(Debug, Clone, Default)]
struct World {
    names: BTreeMap<&'static str, (u32, u8)>,
    /// The files with temporary names.
    temporary: Vec<(u32, u8)>,
    files: u32,
}

impl World {
    fn has(&self, file: (u32, u8)) -> bool {
        self.names.values().chain(&self.temporary).any(|other| *other == file)
    }

    fn put(&mut self, name: &'static str, content: u8, mode: Mode) -> Outcome {
        if mode == Mode::Create && self.names.contains_key(name) {
            return Err(ErrorKind::AlreadyExists);
        }
        self.files += 1;
        self.names.insert(name, (self.files, content));
        Ok(())
    }
}

/// An action in progress: the step that is next, and the object that it has found.
#[derive(Debug, Clone, Copy)]
struct Course {
    action: Action,
    step: u32,
    found: (u32, u8),
    result: Option<Outcome>,
}

impl Course {
    const fn new(action: Action) -> Self {
        Self { action, step: 0, found: (0, 0), result: None }
    }

    /// Makes the next step, which is atomic.
    fn step(&mut self, world: &mut World) {
        let step = self.step;
        self.step += 1;
        let found = |name: &str, world: &World| world.names.get(name).copied().ok_or(ErrorKind::NotFound);
        self.result = match (self.action, step) {
            (Action::Put(name, content, mode), _) => Some(world.put(name, content, mode)),
            (Action::Delete(name), _) => Some(world.names.remove(name).map(drop).ok_or(ErrorKind::NotFound)),
            // The object that is copied or renamed.
            (Action::Copy(from, ..) | Action::Rename(from, ..), 0) => match found(from, world) {
                Ok(object) => {
                    self.found = object;
                    None
                }
                Err(e) => Some(Err(e)),
            },
            (Action::Copy(from, to, mode), _) if from == to && mode == Mode::Replace => Some(Ok(())),
            (Action::Copy(_, to, mode), _) => Some(world.put(to, self.found.1, mode)),
            (Action::Rename(from, to, Mode::Create), 1) => {
                match (world.names.contains_key(to), found(from, world)) {
                    (true, _) => Some(Err(ErrorKind::AlreadyExists)),
                    // It is gone, or another version has replaced it.
                    (_, now) if !world.has(self.found) => {
                        self.step = 1;
                        match now {
                            Ok(object) => {
                                self.found = object;
                                None
                            }
                            Err(e) => Some(Err(e)),
                        }
                    }
                    _ => {
                        world.names.insert(to, self.found);
                        None
                    }
                }
            }
            (Action::Rename(from, to, Mode::Replace), 1) if from == to => Some(Ok(())),
            (Action::Rename(from, to, Mode::Replace), 1) if found(to, world) != Ok(self.found) => {
                let moved = found(from, world).map(|object| {
                    if found(to, world) != Ok(object) {
                        world.names.remove(from);
                        world.names.insert(to, object);
                    }
                });
                Some(moved)
            }
            // Both names have the object: it gets a temporary one, until it has the new one only.
            (Action::Rename(from, ..), 2 | 1) => {
                self.step = 3;
                if found(from, world) == Ok(self.found) {
                    world.names.remove(from);
                    world.temporary.push(self.found);
                    None
                } else {
                    Some(Ok(()))
                }
            }
            (Action::Rename(_, to, _), _) => {
                world.names.entry(to).or_insert(self.found);
                let temporary = world.temporary.iter().position(|file| *file == self.found);
                temporary.map(|n| world.temporary.remove(n));
                Some(Ok(()))
            }
        };
    }
}

/// Adds the results of all orders of the steps of both courses.
fn explore(world: &World, courses: [Course; 2], all: &mut BTreeSet<String>) {
    if let [Some(one), Some(other)] = courses.map(|course| course.result) {
        let contents =
            world.names.iter().map(|(name, (_, content))| ((*name).to_owned(), *content)).collect();
        all.insert(described([one, other], &contents));
        return;
    }
    for n in 0..2 {
        if courses[n].result.is_none() {
            let (mut world, mut courses) = (world.clone(), courses);
            courses[n].step(&mut world);
            explore(&world, courses, all);
        }
    }
}

fn described(outcomes: [Outcome; 2], contents: &Contents) -> String {
    format!("{outcomes:?} {contents:?}")
}

// The calls of the clients, one at a time.

/// Calls of the clients that wait for their turn, and the choices between them.
#[derive(Default)]
struct Turns {
    /// The number of actions in progress. Each waits for one call, except while that is executed.
    active: usize,
    waiting: Vec<oneshot::Sender<()>>,
    /// The choices to make, then the first one.
    plan: Vec<usize>,
    /// The choices made, each with the number of calls that waited.
    made: Vec<(usize, usize)>,
}

impl Turns {
    /// Lets one call proceed, if each action waits for one.
    fn proceed(&mut self) {
        while !self.waiting.is_empty() && self.active <= self.waiting.len() {
            let choice = self.plan.get(self.made.len()).copied().unwrap_or(0);
            let is_chosen = self.active > 0;
            if is_chosen {
                self.made.push((choice, self.waiting.len()));
            }
            self.waiting.remove(choice.min(self.waiting.len() - 1)).send(()).unwrap();
            if is_chosen {
                return;
            }
        }
    }

    /// The choices of the next run; `None` after the last one.
    fn next_plan(&self) -> Option<Vec<usize>> {
        let last = self.made.iter().rposition(|(choice, of)| choice + 1 < *of)?;
        let mut plan: Vec<_> = self.made[..=last].iter().map(|(choice, _)| *choice).collect();
        plan[last] += 1;
        Some(plan)
    }
}

/// Whether it is the name of an object, and neither of a temporary file, which only one client uses, nor of a directory.
fn is_object(name: &[u8]) -> bool {
    matches!(name, b"a" | b"b")
}

/// A file system whose calls on objects wait for their turn.
struct Gate {
    inner: FileSystemRef,
    turns: Arc<Mutex<Turns>>,
}

impl Gate {
    fn in_turn<T: Send + 'static>(
        &self,
        call: impl FnOnce(FileSystemRef) -> Op<T> + Send + 'static,
    ) -> Op<T> {
        let (inner, turns) = (Arc::clone(&self.inner), Arc::clone(&self.turns));
        Op::wait(async move {
            let (turn, waits) = oneshot::channel();
            {
                let mut turns = turns.lock().unwrap();
                turns.waiting.push(turn);
                turns.proceed();
            }
            waits.await.unwrap();
            let result = call(inner).await;
            turns.lock().unwrap().proceed();
            result
        })
    }
}

impl FileSystem for Gate {
    fn lookup(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<(Handle, Attr)> {
        if !is_object(name) {
            return self.inner.lookup(who, dir, name);
        }
        let (who, dir, name) = (who.clone(), *dir, name.to_vec());
        self.in_turn(move |fs| fs.lookup(&who, &dir, &name))
    }

    fn remove(&self, who: &Identity, dir: &Handle, name: &[u8]) -> Op<Wcc> {
        if !is_object(name) {
            return self.inner.remove(who, dir, name);
        }
        let (who, dir, name) = (who.clone(), *dir, name.to_vec());
        self.in_turn(move |fs| fs.remove(&who, &dir, &name))
    }

    fn rename(
        &self,
        who: &Identity,
        dir: &Handle,
        from: &[u8],
        to_dir: &Handle,
        to: &[u8],
    ) -> Op<(Wcc, Wcc)> {
        let (who, dir, from) = (who.clone(), *dir, from.to_vec());
        let (to_dir, to) = (*to_dir, to.to_vec());
        self.in_turn(move |fs| fs.rename(&who, &dir, &from, &to_dir, &to))
    }

    fn link(&self, who: &Identity, file: &Handle, dir: &Handle, name: &[u8]) -> Op<(Attr, Wcc)> {
        let (who, file, dir, name) = (who.clone(), *file, *dir, name.to_vec());
        self.in_turn(move |fs| fs.link(&who, &file, &dir, &name))
    }

    fn read(&self, who: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read> {
        let (who, file) = (who.clone(), *file);
        self.in_turn(move |fs| fs.read(&who, &file, offset, count))
    }

    fn copy(
        &self,
        who: &Identity,
        file: &Handle,
        offset: u64,
        to: &Handle,
        at: u64,
        length: u64,
    ) -> Op<Copied> {
        let (who, file, to) = (who.clone(), *file, *to);
        self.in_turn(move |fs| fs.copy(&who, &file, offset, &to, at, length))
    }

    forward!(inner: root info stat getattr setattr access readlink write commit allocate deallocate zero seek hold create
        create_node rmdir readdir write_verifier);
}

fn start(turns: Arc<Mutex<Turns>>) -> Running {
    let config = Config {
        exports: vec!["/data=memory:64MiB".parse().unwrap()],
        listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
        shards: Some(1),
        ..Config::default()
    };
    Server::start_with(config, move |export, with| {
        let inner = millrace_server::open(export, with)?;
        Ok(Arc::new(Gate { inner, turns: Arc::clone(&turns) }))
    })
    .unwrap()
}

async fn put(objects: &Objects, path: &str, content: u8, mode: Mode) -> Result<(), millrace_client::Error> {
    let mut file = AtomicFile::create(objects.client(), path).await?;
    file.file().write(0, &[content]).await?;
    publish(&mut file, mode).await.map(drop)
}

async fn execute(objects: Objects, dir: String, action: Action) -> Outcome {
    let at = |name: &str| format!("{dir}/{name}");
    let result = match action {
        Action::Put(name, content, mode) => put(&objects, &at(name), content, mode).await,
        Action::Copy(from, to, mode) => {
            objects.copy(Path::new(&at(from)), Path::new(&at(to)), mode).await.map(drop)
        }
        Action::Rename(from, to, mode) => {
            objects.rename(Path::new(&at(from)), Path::new(&at(to)), mode).await
        }
        Action::Delete(name) => objects.remove(Path::new(&at(name))).await,
    };
    result.map_err(|e| e.kind())
}

/// The contents of a directory, when the clients have removed their temporary files.
async fn contents(client: &Client, dir: &str) -> Contents {
    loop {
        let mut entries = client.read_dir(dir).await.unwrap();
        let (mut found, mut is_temporary) = (Contents::new(), false);
        while let Some(entry) = entries.next_entry().await.unwrap() {
            let name = entry.file_name().to_str().unwrap().to_owned();
            if is_temporary_name(name.as_bytes()) {
                is_temporary = true;
            } else {
                let content = client.read(entry.path()).await.unwrap();
                found.insert(name, content[0]);
            }
        }
        if !is_temporary {
            return found;
        }
        tokio::task::yield_now().await;
    }
}

/// The objects before the actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// `a`.
    One,
    /// `a` and `b`.
    Two,
    /// `a` and `b`, which are one file.
    Linked,
}

impl Before {
    fn world(self) -> World {
        let mut world = World::default();
        world.put("a", 1, Mode::Create).unwrap();
        match self {
            Self::One => {}
            Self::Two => world.put("b", 2, Mode::Create).unwrap(),
            Self::Linked => drop(world.names.insert("b", (1, 1))),
        }
        world
    }

    async fn create(self, objects: &Objects, dir: &str) {
        let at = |name: &str| format!("{dir}/{name}");
        put(objects, &at("a"), 1, Mode::Create).await.unwrap();
        match self {
            Self::One => {}
            Self::Two => put(objects, &at("b"), 2, Mode::Create).await.unwrap(),
            Self::Linked => objects.client().hard_link(at("a"), at("b")).await.unwrap(),
        }
    }
}

/// Executes both actions in all interleavings of their calls. Each result must be one of the model.
async fn check(
    clients: &[Objects; 2],
    turns: &Mutex<Turns>,
    before: Before,
    actions: [Action; 2],
    runs: &mut u64,
) {
    let mut expected = BTreeSet::new();
    explore(&before.world(), actions.map(Course::new), &mut expected);
    let mut plan = Some(Vec::new());
    while let Some(choices) = plan {
        *runs += 1;
        let dir = format!("{runs}");
        before.create(&clients[0], &dir).await;
        *turns.lock().unwrap() = Turns { active: 2, plan: choices, ..Turns::default() };
        let mut tasks = Vec::new();
        for (n, action) in actions.into_iter().enumerate() {
            tasks.push(tokio::spawn(execute(clients[n].clone(), dir.clone(), action)));
            // The first call of the first action waits before that of the second one.
            while n == 0 && turns.lock().unwrap().waiting.is_empty() {
                tokio::task::yield_now().await;
            }
        }
        let ended = |outcome: Outcome| {
            let mut turns = turns.lock().unwrap();
            turns.active -= 1;
            turns.proceed();
            outcome
        };
        let (one, other) = (tasks.remove(0), tasks.remove(0));
        let outcomes =
            tokio::join!(async { ended(one.await.unwrap()) }, async { ended(other.await.unwrap()) });
        let found = described(outcomes.into(), &contents(clients[0].client(), &dir).await);
        clients[0].client().remove_dir_all(&dir).await.unwrap();
        let turns = turns.lock().unwrap();
        assert!(
            expected.contains(&found),
            "{actions:?} of {before:?} with the choices {:?}: {found}; expected one of {expected:#?}",
            turns.made
        );
        plan = turns.next_plan();
    }
}

const ACTIONS: [Action; 12] = [
    Action::Put("a", 7, Mode::Replace),
    Action::Put("b", 8, Mode::Replace),
    Action::Put("b", 9, Mode::Create),
    Action::Copy("a", "a", Mode::Replace),
    Action::Copy("a", "b", Mode::Replace),
    Action::Copy("a", "b", Mode::Create),
    Action::Rename("a", "b", Mode::Replace),
    Action::Rename("a", "b", Mode::Create),
    Action::Rename("b", "a", Mode::Replace),
    Action::Rename("b", "a", Mode::Create),
    Action::Delete("a"),
    Action::Delete("b"),
];

/// Tests all pairs of actions that `tested` selects.
fn check_all(version: &str, before: Before, tested: impl Fn(Action) -> bool) {
    let actions: Vec<_> = ACTIONS.into_iter().filter(|action| tested(*action)).collect();
    let turns = Arc::default();
    let server = start(Arc::clone(&turns));
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(async {
        let url = format!("nfs://{}/data?proto=tcp&vers={version}", server.tcp_addr().unwrap());
        let connect = async || Objects::new(Client::connect(&url).await.unwrap());
        let clients = [connect().await, connect().await];
        let mut runs = 0;
        for (n, one) in actions.iter().enumerate() {
            for other in &actions[..=n] {
                check(&clients, &turns, before, [*one, *other], &mut runs).await;
            }
        }
        println!("{runs} interleavings");
    });
}

#[test]
fn actions_on_one_object_have_results_of_the_model() {
    check_all("4.2", Before::One, |_| true);
}

#[test]
fn actions_on_two_objects_have_results_of_the_model() {
    // An object at `b` refuses what creates it, which is tested here, and otherwise has no effect.
    check_all("3", Before::Two, |action| !matches!(action, Action::Put(..)));
}

#[test]
fn actions_on_an_object_with_two_names_have_results_of_the_model() {
    // Copies have nothing to do with names.
    check_all("4.2", Before::Linked, |action| !matches!(action, Action::Copy(..)));
}

#[test]
fn renames_in_opposite_directions_lose_no_object_in_the_model() {
    for before in [Before::One, Before::Two, Before::Linked] {
        for one in [Mode::Replace, Mode::Create] {
            for other in [Mode::Replace, Mode::Create] {
                let mut all = BTreeSet::new();
                let actions = [Action::Rename("a", "b", one), Action::Rename("b", "a", other)];
                explore(&before.world(), actions.map(Course::new), &mut all);
                assert!(all.iter().all(|found| !found.ends_with("{}")), "{before:?} {actions:?}: {all:?}");
            }
        }
    }
}
