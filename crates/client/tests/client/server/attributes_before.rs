//! The proof with NFSv4 that a change is the only one of an object, while another client changes the same objects, and the
//! operations that it takes.

use std::sync::Arc;

use millrace_client::{
    Error, Proto, Version,
    handles::Client,
    ops::{ChangeNumbers, CreateHow, FileHandle, SetAttributes, StableHow, Wcc},
};
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_server::{Config, Running, Server};

use super::{config, options, url};

/// Changes of each client.
const CHANGES: u32 = 300;
const NEW: CreateHow = CreateHow::Unchecked(SetAttributes { mode: None, ..NOTHING });
/// No attribute.
const NOTHING: SetAttributes = SetAttributes {
    mode: None,
    uid: None,
    gid: None,
    size: None,
    atime: millrace_client::ops::SetTime::DontChange,
    mtime: millrace_client::ops::SetTime::DontChange,
};

async fn client(server: &Running, proto: Proto, attributes_before: bool) -> Client {
    let options = options().vers(Some(Version::V4_2)).attributes_before(attributes_before);
    Client::connect(TokioRuntime::current(), &url(server, proto, "/data"), options).await.unwrap()
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..NOTHING }
}

/// Makes a change of the file and one of the directory, alternately, and returns their results. COMMIT changes nothing.
async fn change(c: Client, file: FileHandle, name: &'static str) -> [Vec<Wcc>; 2] {
    let (root, mut of_file, mut of_root) = (c.root(), Vec::new(), Vec::new());
    for n in 0..CHANGES {
        of_file.push(match n % 3 {
            0 => c.setattr(file, mode(n & 0o777), None).await.unwrap(),
            _ => c.write(file, u64::from(n), b"data", StableHow::FileSync).await.unwrap().wcc,
        });
        let committed = c.commit(file, 0, 0).await.unwrap().file.change.unwrap();
        assert_eq!(committed.before, committed.after, "COMMIT");
        of_root.push(match n % 2 {
            0 => c.mkdir(root, name, NOTHING).await.unwrap().dir,
            _ => c.rmdir(root, name).await.unwrap(),
        });
    }
    [of_file, of_root]
}

/// Checks that no two proven changes have the same place among all changes. Returns their number.
fn check(results: &[&[Wcc]], what: &str) -> usize {
    let mut proven: Vec<_> = results.iter().flat_map(|r| r.iter()).filter_map(|wcc| wcc.change).collect();
    proven.sort_unstable_by_key(|change| change.before);
    assert!(proven.iter().all(|change| change.after == change.before + 1), "{what}");
    for pair in proven.windows(2) {
        assert!(pair[0].after <= pair[1].before, "{what}: {pair:?} overlap");
    }
    proven.len()
}

#[test]
fn the_proof_of_a_change_excludes_the_changes_of_others() {
    let server = Server::start(Config { shards: Some(2), ..config() }).unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async {
        let server = Arc::new(&server);
        let (a, b) = (client(&server, Proto::Tcp, true).await, client(&server, Proto::Rdma, true).await);
        let file = a.create(a.root(), "file", NEW).await.unwrap().handle;
        // Alone, each change is proven.
        let [of_file, of_root] = change(a.clone(), file, "a").await;
        assert_eq!(check(&[&of_file], "the file"), CHANGES as usize);
        assert_eq!(check(&[&of_root], "the directory"), CHANGES as usize);
        let both = tokio::join!(
            tokio::spawn(change(a.clone(), file, "a")),
            tokio::spawn(change(b.clone(), file, "b"))
        );
        let ([file_a, root_a], [file_b, root_b]) = (both.0.unwrap(), both.1.unwrap());
        let proven = check(&[&file_a, &file_b], "the file") + check(&[&root_a, &root_b], "the directory");
        assert!(proven > 0, "no change was proven");
        a.shutdown().await;
        b.shutdown().await;
    });
}

/// Changes of names, and of the file `f`.
const OPERATIONS: [&str; 9] =
    ["create", "mkdir", "symlink", "link", "rename", "remove", "rmdir", "write", "setattr"];

/// Makes one of [`OPERATIONS`] in the root directory, which has the file `f`. Returns the changed object and its change.
async fn make(c: &Client, operation: &str, file: FileHandle) -> Result<(FileHandle, Wcc), Error> {
    let root = c.root();
    Ok(match operation {
        "create" => (root, c.create(root, "new", NEW).await?.dir),
        "mkdir" => (root, c.mkdir(root, "d", NOTHING).await?.dir),
        "symlink" => (root, c.symlink(root, "s", "f", NOTHING).await?.dir),
        "link" => (root, c.link(file, root, "g").await?.dir),
        "rename" => (root, c.rename(root, "g", root, "h").await?.to),
        "remove" => (root, c.remove(root, "h").await?),
        "rmdir" => (root, c.rmdir(root, "d").await?),
        "write" => (file, c.write(file, 0, b"data", StableHow::FileSync).await?.wcc),
        _ => (file, c.setattr(file, mode(0o600), None).await?),
    })
}

/// A change of the object by another client.
async fn other(c: &Client, object: FileHandle) {
    if object == c.root() {
        c.mkdir(object, "other", NOTHING).await.unwrap();
        c.rmdir(object, "other").await.unwrap();
    } else {
        c.write(object, 0, b"DATA", StableHow::Unstable).await.unwrap();
    }
}

fn run(test: impl AsyncFn(&Running)) {
    let server = Server::start(config()).unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(test(&server));
}

#[test]
fn a_change_by_another_client_is_noticed() {
    run(async |server| {
        let (a, b) = (client(server, Proto::Tcp, true).await, client(server, Proto::Tcp, true).await);
        let file = a.create(a.root(), "f", NEW).await.unwrap().handle;
        for by_other in [true, false] {
            for operation in OPERATIONS {
                let object = if matches!(operation, "write" | "setattr") { file } else { a.root() };
                let known = a.getattr(object).await.unwrap().change.unwrap();
                if by_other {
                    other(&b, object).await;
                }
                let (changed, wcc) = make(&a, operation, file).await.unwrap();
                let change = wcc.change.unwrap();
                assert_eq!(changed, object);
                assert_eq!(change.before == known, !by_other, "{operation}: {known}, {change:?}");
                assert_eq!(a.getattr(object).await.unwrap().change, Some(change.after), "{operation}");
            }
            a.remove(a.root(), "new").await.unwrap();
            a.remove(a.root(), "s").await.unwrap();
        }
        // COMMIT does not cover a change by another client.
        for by_other in [true, false] {
            let written = a.write(file, 0, b"data", StableHow::Unstable).await.unwrap().wcc;
            if by_other {
                other(&b, file).await;
            }
            let committed = a.commit(file, 0, 0).await.unwrap().file;
            let both = written.then(committed).change;
            assert_eq!(both, written.change.filter(|_| !by_other));
            let now = a.getattr(file).await.unwrap().change;
            let unchanged = now.map(|now| ChangeNumbers { before: now, after: now });
            assert!(now.is_some() && committed.change == unchanged);
        }
    });
}

/// The operations that the server executes for a change, SEQUENCE included: each takes time at both ends.
#[test]
fn a_change_takes_few_operations() {
    run(async |server| {
        let executed =
            || server.stats().nfs4_operations.iter().map(|(_, operation)| operation.calls).sum::<u64>();
        for (attributes_before, expected) in
            [(true, [6, 5, 5, 7, 5, 7, 7, 5, 5]), (false, [9, 8, 8, 8, 8, 8, 8, 4, 4])]
        {
            let c = client(server, Proto::Tcp, attributes_before).await;
            let file = c.create(c.root(), "f", NEW).await.unwrap().handle;
            let mut found = Vec::new();
            for operation in OPERATIONS {
                let before = executed();
                make(&c, operation, file).await.unwrap();
                found.push(executed() - before);
            }
            assert_eq!(found, expected, "{OPERATIONS:?}, attributes before: {attributes_before}");
            let before = executed();
            c.commit(file, 0, 0).await.unwrap();
            assert_eq!(executed() - before, 4, "COMMIT");
            for name in ["new", "s", "f"] {
                c.remove(c.root(), name).await.unwrap();
            }
            c.shutdown().await;
        }
    });
}
