//! The attributes before changes that two clients make at the same time, with NFSv4.

use std::sync::Arc;

use millrace_client::{Proto, Version, nfs3::Client};
use millrace_nfs::v3::{FileHandle, NfsTime, Sattr, StableHow, WccData};
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_server::{Config, Running, Server};

use super::{config, options, url};

/// Changes of each client.
const CHANGES: u32 = 300;

async fn client(server: &Running, proto: Proto) -> Client {
    let options = options().vers(Some(Version::V4_2)).attributes_before(true);
    Client::connect(TokioRuntime::current(), &url(server, proto, "/data"), options).await.unwrap()
}

/// Makes a change of the file and one of the directory, alternately, and returns their results. COMMIT changes nothing,
/// so its attributes before and after are the same, or not proven.
async fn change(c: Client, file: FileHandle, name: &'static str) -> [Vec<WccData>; 2] {
    let (root, mut of_file, mut of_root) = (c.root(), Vec::new(), Vec::new());
    for n in 0..CHANGES {
        of_file.push(match n % 3 {
            0 => c.setattr(file, Sattr { mode: Some(n & 0o777), ..Sattr::default() }, None).await.unwrap(),
            _ => c.write(file, u64::from(n), b"data", StableHow::FileSync).await.unwrap().wcc,
        });
        let committed = c.commit(file, 0, 0).await.unwrap().file;
        if let (Some(before), Some(after)) = (committed.before, committed.after) {
            assert_eq!((before.size, before.ctime), (after.size, after.ctime), "COMMIT");
        }
        of_root.push(match n % 2 {
            0 => c.mkdir(root, name, Sattr::default()).await.unwrap().dir,
            _ => c.rmdir(root, name).await.unwrap(),
        });
    }
    [of_file, of_root]
}

/// Each change of an object in memory advances its ctime. So the times before and after a proven change belong to no other
/// one, and if all are proven, each begins with the attributes with which the previous one ended.
fn check(results: &[&[WccData]], what: &str) -> usize {
    let time = |t: NfsTime| (t.seconds, t.nanoseconds);
    let mut proven: Vec<_> = results
        .iter()
        .flat_map(|r| r.iter())
        .filter_map(|wcc| Some((time(wcc.before?.ctime), time(wcc.after?.ctime))))
        .collect();
    proven.sort_unstable();
    for pair in proven.windows(2) {
        assert!(pair[0].0 < pair[0].1 && pair[0].1 <= pair[1].0, "{what}: {pair:?} overlap");
    }
    proven.len()
}

#[test]
fn the_attributes_before_a_change_exclude_the_changes_of_others() {
    let server = Server::start(Config { shards: Some(2), ..config() }).unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async {
        let server = Arc::new(&server);
        let (a, b) = (client(&server, Proto::Tcp).await, client(&server, Proto::Rdma).await);
        let how = millrace_nfs::v3::CreateHow::Unchecked(Sattr::default());
        let file = a.create(a.root(), "file", how).await.unwrap().handle;
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
