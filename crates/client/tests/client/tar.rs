//! The file system of the server's example `serve_tar`: the conformance suite, and reads over both
//! transports.

#[path = "../../../server/examples/serve_tar/tar_fs.rs"]
mod tar_fs;

use std::{io::ErrorKind, path::Path, sync::Arc, time::Duration};

use millrace_client::Client;
use millrace_server::{Config, Server};
use millrace_vfs::conformance::{self, Capability, Subject};
use tar::{EntryType, Header};
use tar_fs::TarFs;

/// Size of a file that needs several blocks of memory and several calls.
fn long_content() -> Vec<u8> {
    (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Writes an archive without an entry for the directory `deep`.
fn write_archive(path: &Path) {
    let mut archive = tar::Builder::new(std::fs::File::create(path).unwrap());
    let header = |kind, mode, size| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(1_000_000_000);
        header.set_uid(1000);
        header.set_gid(1000);
        header.set_size(size);
        header
    };
    let mut add = |path, kind, mode, data: &[u8]| {
        archive.append_data(&mut header(kind, mode, data.len() as u64), path, data).unwrap();
    };
    add("./", EntryType::Directory, 0o755, b"");
    add("./short", EntryType::Regular, 0o644, b"a few bytes\n");
    add("./empty", EntryType::Regular, 0o644, b"");
    add("./private", EntryType::Regular, 0o600, b"for the owner");
    add("./deep/er/long", EntryType::Regular, 0o644, &long_content());
    let mut link = header(EntryType::Symlink, 0o777, 0);
    archive.append_link(&mut link, "./link", "deep/er/long").unwrap();
    archive.finish().unwrap();
}

#[test]
fn an_archive_passes_the_conformance_suite_as_a_read_only_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("archive.tar");
    write_archive(&path);
    let report =
        conformance::run(|resources| Subject::new(Arc::new(TarFs::open(&path, &resources.arena).unwrap())));
    println!("{report}");
    report.assert_passed();
    assert!(report.passed() >= 10, "{report}");
    assert!(report.skipped().contains(&Capability::Changes));
}

#[test]
fn a_client_reads_a_served_archive() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("archive.tar");
    write_archive(&path);
    let config = Config {
        exports: vec![format!("/archive=local:{}", path.display()).parse().unwrap()],
        listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
        listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
        shards: Some(1),
        ..Config::default()
    };
    let server = Server::start_with(config, move |_, with| {
        let fs = TarFs::open(&path, with.arena).map_err(|e| e.to_string())?;
        Ok(Arc::new(fs))
    });
    let server = server.unwrap();
    let (tcp, rdma) = (server.tcp_addr().unwrap(), server.rdma_addr().unwrap());
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for url in [format!("nfs://{tcp}/archive?proto=tcp"), format!("nfs://{rdma}/archive?proto=rdma")] {
        tokio.block_on(check(&url));
    }
    drop(tokio);
    server.stop_blocking(Duration::from_secs(1));
}

/// Reads and checks the contents from [`write_archive`].
async fn check(url: &str) {
    let client = Client::connect(url).await.unwrap();
    let mut entries = client.read_dir("").await.unwrap();
    let mut names = Vec::new();
    while let Some(entry) = entries.next_entry().await.unwrap() {
        names.push(entry.file_name().to_str().unwrap().to_owned());
    }
    names.sort();
    assert_eq!(names, ["deep", "empty", "link", "private", "short"]);
    assert_eq!(client.read_to_string("short").await.unwrap(), "a few bytes\n");
    assert!(client.read("link").await.unwrap() == long_content());
    assert_eq!(client.read_link("link").await.unwrap(), Path::new("deep/er/long"));
    assert_eq!(client.metadata("empty").await.unwrap().len(), 0);
    for (denied, kind) in [
        (client.read("private").await.map(drop), ErrorKind::PermissionDenied),
        (client.write("new", b"x").await, ErrorKind::ReadOnlyFilesystem),
        (client.remove_file("short").await, ErrorKind::ReadOnlyFilesystem),
        (client.read("none").await.map(drop), ErrorKind::NotFound),
    ] {
        assert_eq!(denied.unwrap_err().kind(), kind);
    }
    client.close();
}
