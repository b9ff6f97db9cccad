//! Concurrent changes and reads of the same objects, checked against a model.

use std::{sync::Arc, task::Poll, time::Instant};

use futures::future::join_all;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion, path::Path};

use crate::{files_left, on_all, shared, store};

const WRITERS: u64 = 6;
const PUTS: u64 = 12;
const READERS: usize = 4;

/// The content of a version: its number in each 8 bytes. The length depends on the number.
fn version(number: u64) -> Vec<u8> {
    let words = [1, 700, 9_000, 40_000, 200_000][number as usize % 5] + number as usize;
    number.to_be_bytes().repeat(words)
}

/// The number of the version with this content, which must be complete and unmixed.
fn number(content: &[u8]) -> u64 {
    let number = u64::from_be_bytes(content[..8].try_into().unwrap());
    assert!(content == version(number), "a mixed or partial object, of version {number}");
    number
}

/// A put or a read, with the times of its call and its return.
#[derive(Debug, Clone, Copy)]
struct Operation {
    version: u64,
    called: Instant,
    returned: Instant,
}

impl Operation {
    fn is_before(&self, other: &Self) -> bool {
        self.returned < other.called
    }
}

/// Checks that each read returned a version that an atomic register could have had during the read: its put had been
/// called, and no other put was between that put and the read.
fn check_register(puts: &[Operation], reads: &[Operation]) {
    for read in reads {
        let put = puts.iter().find(|put| put.version == read.version).unwrap();
        assert!(!read.is_before(put), "{read:?} returned the value of a later {put:?}");
        let between = puts.iter().find(|other| put.is_before(other) && other.is_before(read));
        assert!(between.is_none(), "{read:?} returned {put:?}, which {between:?} had replaced");
    }
}

async fn timed(version: impl Future<Output = u64>) -> Operation {
    let called = Instant::now();
    Operation { version: version.await, called, returned: Instant::now() }
}

#[test]
fn an_object_that_many_clients_replace_is_an_atomic_register() {
    on_all(|url| async move {
        let location = Path::from("register/object");
        // Each writer and reader has its own connection.
        let mut stores = Vec::new();
        for _ in 0..WRITERS as usize + READERS {
            stores.push(shared(&store(&*url, "replaced").await));
        }
        let readers = stores.split_off(WRITERS as usize);
        let first = timed(async {
            readers[0].put(&location, version(0).into()).await.unwrap();
            0
        });
        let mut puts = vec![first.await];
        let writers = stores.into_iter().zip(0..).map(|(store, writer)| {
            let location = location.clone();
            tokio::spawn(async move {
                let mut puts = Vec::new();
                for n in 0..PUTS {
                    let number = 1 + writer * PUTS + n;
                    puts.push(timed(put(&store, &location, number)).await);
                }
                puts
            })
        });
        let writers: Vec<_> = writers.collect();
        let reads = readers.into_iter().map(|store| {
            let location = location.clone();
            tokio::spawn(async move {
                let mut reads = Vec::new();
                for _ in 0..(WRITERS * PUTS / 2) {
                    reads.push(timed(get(&store, &location)).await);
                }
                reads
            })
        });
        let reads: Vec<_> = reads.collect();
        puts.extend(join_all(writers).await.into_iter().flat_map(Result::unwrap));
        let reads: Vec<_> = join_all(reads).await.into_iter().flat_map(Result::unwrap).collect();
        check_register(&puts, &reads);
        assert_eq!(files_left(&store(&*url, "replaced").await, 1).await, ["replaced/register/object"]);
    });
}

/// Puts a version, large ones by a multipart upload.
async fn put(store: &Arc<dyn ObjectStore>, location: &Path, number: u64) -> u64 {
    let content = version(number);
    if content.len() < 1 << 20 {
        store.put(location, content.into()).await.unwrap();
        return number;
    }
    let mut upload = store.put_multipart(location).await.unwrap();
    let parts: Vec<_> = content.chunks(600_000).map(|part| upload.put_part(part.to_vec().into())).collect();
    join_all(parts).await.into_iter().for_each(Result::unwrap);
    upload.complete().await.unwrap();
    number
}

/// Reads the object. A large object that is replaced meanwhile is read again.
async fn get(store: &Arc<dyn ObjectStore>, location: &Path) -> u64 {
    loop {
        match store.get(location).await.unwrap().bytes().await {
            Ok(content) => return number(&content),
            Err(e) => assert!(e.to_string().contains("was replaced"), "{e}"),
        }
    }
}

#[test]
fn exactly_one_of_many_clients_creates_an_object() {
    on_all(|url| async move {
        let mut stores = Vec::new();
        for _ in 0..4 {
            stores.push(shared(&store(&*url, "created").await));
        }
        for object in 0..20 {
            let location = Path::from(format!("dir{object}/object"));
            let creators = (0..8).map(|n| {
                let (store, location) = (Arc::clone(&stores[n % stores.len()]), location.clone());
                tokio::spawn(async move {
                    let content = version(n as u64);
                    match store.put_opts(&location, content.into(), PutMode::Create.into()).await {
                        Ok(_) => Some(n as u64),
                        Err(Error::AlreadyExists { .. }) => None,
                        Err(e) => panic!("{e}"),
                    }
                })
            });
            let creators: Vec<_> = creators.collect();
            let read = stores[0].get(&location).await;
            let winners: Vec<_> = join_all(creators).await.into_iter().filter_map(Result::unwrap).collect();
            assert_eq!(winners.len(), 1, "{winners:?}");
            if let Ok(read) = read {
                assert_eq!(number(&read.bytes().await.unwrap()), winners[0]);
            }
            let content = stores[1].get(&location).await.unwrap().bytes().await.unwrap();
            assert_eq!(number(&content), winners[0]);
        }
        assert_eq!(files_left(&store(&*url, "created").await, 20).await.len(), 20);
    });
}

/// Adds 1 to the number in the object, which other clients do too. Returns the number before.
async fn increment(store: &Arc<dyn ObjectStore>, location: &Path) -> u64 {
    loop {
        let read = store.get(location).await.unwrap();
        let version = UpdateVersion { e_tag: read.meta.e_tag.clone(), version: None };
        let Ok(content) = read.bytes().await else { continue };
        let before = number(&content);
        match store
            .put_opts(location, self::version(before + 1).into(), PutMode::Update(version).into())
            .await
        {
            Ok(_) => return before,
            Err(Error::Precondition { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn no_conditional_put_of_many_clients_is_lost() {
    on_all(|url| async move {
        if url("").ends_with("vers=3") {
            return;
        }
        let location = Path::from("counter/object");
        // Two tasks share each connection.
        let mut stores = Vec::new();
        for _ in 0..WRITERS / 2 {
            stores.push(shared(&store(&*url, "counter").await));
        }
        stores[0].put_opts(&location, version(0).into(), PutMode::Create.into()).await.unwrap();
        let tasks = (0..WRITERS as usize).map(|n| {
            let (store, location) = (Arc::clone(&stores[n % stores.len()]), location.clone());
            tokio::spawn(async move {
                let mut before = Vec::new();
                for _ in 0..PUTS {
                    before.push(increment(&store, &location).await);
                }
                before
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let mut before: Vec<_> = join_all(tasks).await.into_iter().flat_map(Result::unwrap).collect();
        before.sort_unstable();
        assert!(before.into_iter().eq(0..WRITERS * PUTS), "each number was replaced once");
        assert_eq!(get(&stores[0], &location).await, WRITERS * PUTS);
        assert_eq!(files_left(&store(&*url, "counter").await, 1).await, ["counter/counter/object"]);
    });
}

#[test]
fn a_conditional_put_that_is_abandoned_does_not_exclude_others() {
    on_all(|url| async move {
        if url("").ends_with("vers=3") {
            return;
        }
        let location = Path::from("abandoned/object");
        let one = shared(&store(&*url, "abandoned").await);
        let other = shared(&store(&*url, "abandoned").await);
        one.put(&location, version(0).into()).await.unwrap();
        // The future is dropped after each number of polls, until it has made the put.
        for polls in 0.. {
            let e_tag = other.head(&location).await.unwrap().e_tag;
            let mode = PutMode::Update(UpdateVersion { e_tag, version: None });
            let mut put = one.put_opts(&location, version(1).into(), mode.into());
            let mut left = polls;
            let made = std::future::poll_fn(|cx| {
                if left == 0 {
                    return Poll::Ready(None);
                }
                left -= 1;
                put.as_mut().poll(cx).map(Some)
            });
            let made = made.await;
            drop(put);
            let replaced = replace(&other, &location).await;
            assert_eq!(other.head(&location).await.unwrap().e_tag, replaced, "after {polls} polls");
            if let Some(made) = made {
                made.unwrap();
                return;
            }
        }
    });
}

/// Replaces the object by a conditional put. Returns the ETag.
async fn replace(store: &Arc<dyn ObjectStore>, location: &Path) -> Option<String> {
    loop {
        let e_tag = store.head(location).await.unwrap().e_tag;
        let mode = PutMode::Update(UpdateVersion { e_tag, version: None });
        match store.put_opts(location, version(2).into(), mode.into()).await {
            Ok(put) => return put.e_tag,
            Err(Error::Precondition { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn a_conditional_put_looks_up_the_object_twice() {
    on_all(|url| async move {
        if url("").ends_with("vers=3") {
            return;
        }
        let (store, location) = (store(&*url, "calls").await, Path::from("object"));
        let calls = || store.client().stats().calls;
        store.put(&location, version(0).into()).await.unwrap();
        let before = calls();
        let e_tag = store.put(&location, version(1).into()).await.unwrap().e_tag;
        let plain = calls() - before;
        let mode = PutMode::Update(UpdateVersion { e_tag, version: None });
        let before = calls();
        store.put_opts(&location, version(2).into(), mode.into()).await.unwrap();
        // Two LOOKUPs, OPEN, LOCK, LOCKU and CLOSE.
        assert!(calls() - before <= plain + 6, "{} and {plain} calls", calls() - before);
    });
}
