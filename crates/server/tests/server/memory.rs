//! Memory of the server: isolation between exports and the network, and return of unused memory.

use std::time::Duration;

use millrace_nfs::v3::{
    CreateHow, FileHandle, LinkArgs, LinkOk, Procedure, RemoveOk, Res, Sattr, StableHow, Status, WccData,
};
use millrace_server::Server;

use crate::common::{Caller, Proto, at, config, run};

const PAGE: usize = 4096;

async fn remove(c: &Caller, dir: FileHandle, name: &str) {
    let res: Res<RemoveOk, WccData> =
        c.nfs(Procedure::Remove, &millrace_nfs::v3::RemoveArgs { object: at(dir, name) }).await;
    res.into_result().map_err(|(s, _)| s).unwrap();
}

/// Fills an export with files of `len` bytes, and keeps one file in each 4 MiB.
async fn fill_sparsely(c: &Caller, root: FileHandle, len: usize) -> usize {
    let data = vec![7; len];
    let mut names = Vec::new();
    loop {
        let name = format!("{len}-{}", names.len());
        let Ok(file) = c.create_how(root, &name, CreateHow::Guarded(Sattr::default())).await else { break };
        names.push(name);
        if c.write(file, 0, &data, StableHow::Unstable).await.is_err() {
            break;
        }
    }
    for (i, name) in names.iter().enumerate() {
        if i % ((4 << 20) / len) != 1 {
            remove(c, root, name).await;
        }
    }
    names.len()
}

/// Writes and reads 4 MiB with concurrent calls.
async fn use_export(server: &millrace_server::Running, proto: Proto, export: &str) {
    let c = Caller::connect(server, proto).await;
    let root = c.mount(export).await.unwrap();
    let file = c.create(root, &format!("{proto:?}")).await;
    let data = vec![9; 1 << 20];
    let writes = (0..4).map(|i| c.write(file, i << 20, &data, StableHow::Unstable));
    for done in futures::future::join_all(writes).await {
        assert_eq!(done.unwrap().count, 1 << 20, "{proto:?} {export}");
    }
    let reads = (0..4).map(|i| c.read(file, i << 20, 1 << 20));
    for done in futures::future::join_all(reads).await {
        assert!(done.unwrap().0 == data, "{proto:?} {export}");
    }
}

#[test]
fn sparse_files_of_an_export_do_not_use_memory_of_others() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let local = format!("/local=local:{},squash=none", dir.path().display());
        let mut config = config(&["/m=memory:24MiB", "/other=memory:16MiB", &local]);
        (config.limits.memory, config.limits.credits) = ("24MiB".parse().unwrap(), 8);
        let server = Server::start(config).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let root = c.mount("/m").await.unwrap();
        for len in [64 << 10, 32 << 10, 16 << 10, 8 << 10, PAGE] {
            assert!(fill_sparsely(&c, root, len).await > (16 << 20) / len);
        }
        for export in ["/other", "/local"] {
            for proto in [Proto::Tcp, Proto::Rdma] {
                use_export(&server, proto, export).await;
            }
        }
        let memory = server.stats().memory;
        assert!(memory.mapped <= memory.limit + memory.reserve + memory.quotas + (4 << 20), "{memory:?}");
    });
}

#[test]
fn links_are_charged_to_the_quota_of_the_export() {
    run(async {
        let server = Server::start(config(&["/m=memory:1MiB"])).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let root = c.mount("/m").await.unwrap();
        let file = c.create(root, "f").await;
        let mut count = 0;
        let full = loop {
            let name = format!("{count:0200}");
            let args = LinkArgs { file, link: at(root, &name) };
            let res: Res<LinkOk, millrace_nfs::v3::LinkFail> = c.nfs(Procedure::Link, &args).await;
            match res.into_result() {
                Ok(_) => count += 1,
                Err((status, _)) => break status,
            }
            assert!(count < 10_000, "2 MB of names in 1 MiB");
        };
        assert!(full == Status::NoSpc && count > 1000, "{full:?} after {count} links");
        // Removing names makes room for a file.
        remove(&c, root, &format!("{:0200}", 7)).await;
        remove(&c, root, &format!("{:0200}", 8)).await;
        c.create(root, "g").await;
    });
}

#[test]
#[ignore = "waits for seconds"]
fn memory_is_returned_after_a_load() {
    run(async {
        let server = Server::start(config(&["/m=memory:256MiB"])).unwrap();
        let c = Caller::connect(&server, Proto::Rdma).await;
        let root = c.mount("/m").await.unwrap();
        let file = c.create(root, "f").await;
        for i in 0..128 {
            c.write(file, i << 20, &vec![1; 1 << 20], StableHow::Unstable).await.unwrap();
        }
        assert!(server.stats().memory.mapped >= 128 << 20);
        remove(&c, root, "f").await;
        drop(c);
        while server.stats().memory.mapped > 16 << 20 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}
