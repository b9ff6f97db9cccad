//! Operations on paths, and their error kinds, as in `std::fs`.

use std::{
    io::ErrorKind,
    path::Path,
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime},
};

use futures::TryStreamExt;
use millrace_client::{
    AtomicFile, Client, Error, FileTimes, FileType, Identity, OpenOptions, RetryPolicy, Version,
};

use crate::common::{connect, on_all};

/// The kind of the error of an operation that must fail.
fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

async fn names(client: &Client, path: &str) -> Vec<String> {
    let entries: Vec<_> = client.read_dir(path).await.unwrap().try_collect().await.unwrap();
    let mut names: Vec<_> = entries.iter().map(|e| e.file_name().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn whole_files_are_written_and_read() {
    on_all(|url| async move {
        let c = connect(&url).await;
        for len in [0, 1, 100_000, 5_000_000] {
            let content: Vec<u8> = (0..len).map(|i: usize| (i >> 5) as u8).collect();
            c.write("file", &content).await.unwrap();
            assert!(c.read("file").await.unwrap() == content);
            assert_eq!(c.metadata("/file").await.unwrap().len(), len as u64);
        }
        c.write("text", "Zürich").await.unwrap();
        assert_eq!(c.read_to_string("text").await.unwrap(), "Zürich");
        c.write("text", [0xff]).await.unwrap();
        assert_eq!(kind(c.read_to_string("text").await), ErrorKind::InvalidData);
        assert_eq!(kind(c.read("none").await), ErrorKind::NotFound);
        assert_eq!(kind(c.read("text/below").await), ErrorKind::NotADirectory);
        assert_eq!(kind(c.read("/").await), ErrorKind::IsADirectory);
        assert_eq!(kind(c.write("no/dir", "x").await), ErrorKind::NotFound);
    });
}

#[test]
fn directories_are_created_listed_and_removed() {
    on_all(|url| async move {
        let c = connect(&url).await;
        c.create_dir("a").await.unwrap();
        let again = c.create_dir("a").await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);
        assert_eq!(again.to_string(), "MKDIR a: the file exists (NFSERR_EXIST)");
        assert_eq!(kind(c.create_dir("x/y").await), ErrorKind::NotFound);

        for path in ["a/b/c/d", "/a/b/c/d/", "a", "/", "a/b/../b2"] {
            c.create_dir_all(path).await.unwrap();
        }
        c.symlink("b", "a/link").await.unwrap();
        c.create_dir_all("a/link/through").await.unwrap();
        assert_eq!(names(&c, "a/b").await, ["c", "through"]);
        c.write("a/file", "x").await.unwrap();
        assert!(c.create_dir_all("a/file").await.is_err());
        assert_eq!(kind(c.create_dir_all("a/file/below").await), ErrorKind::NotADirectory);

        let mut entries = c.read_dir("a").await.unwrap();
        let mut types = Vec::new();
        while let Some(entry) = entries.next_entry().await.unwrap() {
            assert_eq!(entry.path(), Path::new("a").join(entry.file_name()));
            assert_eq!(entry.metadata().file_type(), entry.file_type());
            types.push((entry.file_name().to_owned(), entry.file_type()));
        }
        types.sort_by(|a, b| a.0.cmp(&b.0));
        let types: Vec<_> = types.iter().map(|(name, of)| (name.to_str().unwrap(), *of)).collect();
        let (dir, file, link) = (FileType::Directory, FileType::Regular, FileType::Symlink);
        assert_eq!(types, [("b", dir), ("b2", dir), ("file", file), ("link", link)]);
        assert_eq!(kind(c.read_dir("a/file").await), ErrorKind::NotADirectory);
        assert_eq!(kind(c.read_dir("none").await), ErrorKind::NotFound);

        assert_eq!(kind(c.remove_dir("a").await), ErrorKind::DirectoryNotEmpty);
        assert_eq!(kind(c.remove_dir("a/file").await), ErrorKind::NotADirectory);
        assert_eq!(kind(c.remove_dir("none").await), ErrorKind::NotFound);
        assert_eq!(kind(c.remove_file("a/b").await), ErrorKind::IsADirectory);
        c.remove_dir("a/b2").await.unwrap();
        c.remove_file("a/link").await.unwrap();
        c.remove_file("a/file").await.unwrap();
        assert_eq!(names(&c, "a").await, ["b"]);
    });
}

#[test]
fn a_large_directory_is_streamed_page_by_page() {
    on_all(|url| async move {
        let c = connect(&url).await;
        c.create_dir("many").await.unwrap();
        let wanted: Vec<String> = (0..700).map(|n| format!("a-name-of-some-length-{n:04}")).collect();
        for name in &wanted {
            c.create(format!("many/{name}")).await.unwrap();
        }
        assert_eq!(names(&c, "many").await, wanted);
        c.remove_dir_all("many").await.unwrap();
        assert!(!c.try_exists("many").await.unwrap());
    });
}

#[test]
fn removing_a_tree_does_not_follow_symbolic_links() {
    on_all(|url| async move {
        let c = connect(&url).await;
        c.create_dir_all("keep/inside").await.unwrap();
        c.write("keep/file", "kept").await.unwrap();
        c.create_dir_all("tree/a/b/c").await.unwrap();
        c.create_dir_all("tree/d").await.unwrap();
        c.write("tree/a/file", "x").await.unwrap();
        c.symlink("../../keep", "tree/a/to-dir").await.unwrap();
        c.symlink("../keep/file", "tree/to-file").await.unwrap();
        c.symlink("nowhere", "tree/dangling").await.unwrap();
        c.symlink("tree", "to-tree").await.unwrap();

        c.remove_dir_all("to-tree").await.unwrap();
        assert!(!c.try_exists("to-tree").await.unwrap() && c.try_exists("tree").await.unwrap());
        c.remove_dir_all("tree").await.unwrap();
        assert_eq!(names(&c, "/").await, ["keep"]);
        assert_eq!(names(&c, "keep").await, ["file", "inside"]);
        assert_eq!(kind(c.remove_dir_all("keep/file").await), ErrorKind::NotADirectory);
        assert_eq!(kind(c.remove_dir_all("none").await), ErrorKind::NotFound);
    });
}

#[test]
fn names_are_linked_and_renamed_and_have_metadata() {
    on_all(|url| async move {
        let c = connect(&url).await;
        c.write("one", "1").await.unwrap();
        c.hard_link("one", "two").await.unwrap();
        let (one, two) = (c.metadata("one").await.unwrap(), c.metadata("two").await.unwrap());
        assert_eq!((one.ino(), one.nlink()), (two.ino(), 2));
        assert_eq!(kind(c.hard_link("one", "two").await), ErrorKind::AlreadyExists);
        assert_eq!(kind(c.hard_link("none", "three").await), ErrorKind::NotFound);

        c.symlink("one", "link").await.unwrap();
        assert_eq!(c.read_link("link").await.unwrap(), Path::new("one"));
        assert_eq!(kind(c.read_link("one").await), ErrorKind::InvalidInput);
        assert!(c.metadata("link").await.unwrap().is_file());
        assert!(c.symlink_metadata("link").await.unwrap().is_symlink());
        assert_eq!(kind(c.symlink("x", "link").await), ErrorKind::AlreadyExists);
        c.hard_link("link", "link2").await.unwrap();
        assert!(c.symlink_metadata("link2").await.unwrap().is_symlink());

        c.rename("two", "one").await.unwrap();
        c.write("other", "2").await.unwrap();
        c.rename("other", "one").await.unwrap();
        assert_eq!(c.read("link").await.unwrap(), b"2");
        assert_eq!(kind(c.rename("none", "x").await), ErrorKind::NotFound);
        c.remove_file("one").await.unwrap();
        assert!(!c.try_exists("link").await.unwrap());
        assert_eq!(kind(c.metadata("link").await), ErrorKind::NotFound);

        c.write("one", "1").await.unwrap();
        c.set_permissions("link", 0o4710).await.unwrap();
        let time = |seconds| SystemTime::UNIX_EPOCH + Duration::new(seconds, 7);
        c.set_times("one", FileTimes::new().set_accessed(time(1)).set_modified(time(4_000_000_000)))
            .await
            .unwrap();
        let one = c.metadata("one").await.unwrap();
        assert_eq!((one.mode(), one.accessed(), one.modified()), (0o4710, time(1), time(4_000_000_000)));
        c.set_times("one", FileTimes::new().set_accessed(time(2))).await.unwrap();
        assert_eq!(c.metadata("one").await.unwrap().modified(), one.modified());
        let late = FileTimes::new().set_modified(time(1 << 32));
        let early = SystemTime::UNIX_EPOCH - Duration::new(312_508_799, 999_999_993);
        if c.by_handle().version() == Version::V3 {
            assert_eq!(kind(c.set_times("one", late).await), ErrorKind::InvalidInput);
        } else {
            c.set_times("one", late.set_accessed(early)).await.unwrap();
            let one = c.metadata("one").await.unwrap();
            assert_eq!((one.accessed(), one.modified()), (early, time(1 << 32)));
        }
    });
}

#[test]
fn copies_keep_holes() {
    const SIZE: u64 = 40 << 20;
    const PARTS: [u64; 3] = [1 << 20, (20 << 20) + 777, (30 << 20) + 5];
    on_all(|url| async move {
        let c = connect(&url).await;
        let content = vec![7; 100_000];
        let from = OpenOptions::new().write(true).create(true).open(&c, "from").await.unwrap();
        for at in PARTS {
            from.by_handle().write(at, &content).await.unwrap();
        }
        from.set_len(SIZE).await.unwrap();
        c.write("to", vec![1; 3_000_000]).await.unwrap();
        assert_eq!(c.copy("from", "to").await.unwrap(), SIZE);
        let mut atomic = AtomicFile::create(&c, "atomic").await.unwrap();
        assert_eq!(atomic.copy_from(from.by_handle(), SIZE).await.unwrap(), SIZE);
        atomic.replace().await.unwrap();
        for name in ["to", "atomic"] {
            let file = c.open(name).await.unwrap();
            let attributes = c.by_handle().getattr(file.handle()).await.unwrap();
            assert_eq!(attributes.size, SIZE);
            assert!(attributes.used <= 4 << 20, "{name} uses {} bytes", attributes.used);
            for at in PARTS {
                let mut there = vec![0; content.len() + 2];
                file.by_handle().read(at - 1, &mut there).await.unwrap();
                assert!(
                    there[0] == 0 && there[1..=content.len()] == content && there[content.len() + 1] == 0
                );
            }
        }
    });
}

#[test]
fn files_are_copied_with_their_permissions() {
    on_all(|url| async move {
        let c = connect(&url).await;
        let content: Vec<u8> =
            (0..7_654_321_usize).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        for len in [0, 10, content.len()] {
            c.write("from", &content[..len]).await.unwrap();
            c.set_permissions("from", 0o640).await.unwrap();
            c.write("to", &content[..20]).await.unwrap();
            assert_eq!(c.copy("from", "to").await.unwrap(), len as u64);
            assert!(c.read("to").await.unwrap() == content[..len]);
            assert_eq!(c.metadata("to").await.unwrap().mode(), 0o640);
        }
        c.hard_link("from", "same").await.unwrap();
        assert_eq!(kind(c.copy("from", "same").await), ErrorKind::InvalidInput);
        assert!(c.read("from").await.unwrap() == content);
        assert_eq!(kind(c.copy("none", "to").await), ErrorKind::NotFound);
    });
}

#[test]
fn open_options_behave_as_for_local_files() {
    on_all(|url| async move {
        let c = connect(&url).await;
        type Set = fn(&mut OpenOptions) -> &mut OpenOptions;
        let open = async |set: Set, path: &str| set(&mut OpenOptions::new()).open(&c, path).await;
        let invalid: [Set; 5] = [
            |o| o,
            |o| o.create(true),
            |o| o.read(true).truncate(true),
            |o| o.append(true).truncate(true),
            |o| o.read(true).create_new(true),
        ];
        for set in invalid {
            assert_eq!(kind(open(set, "x").await), ErrorKind::InvalidInput);
        }
        assert_eq!(kind(open(|o| o.write(true), "x").await), ErrorKind::NotFound);
        let new = open(|o| o.write(true).create_new(true).mode(0o600), "new").await.unwrap();
        assert_eq!(new.metadata().await.unwrap().mode(), 0o600);
        assert_eq!(kind(open(|o| o.write(true).create_new(true), "new").await), ErrorKind::AlreadyExists);

        c.write("new", "content").await.unwrap();
        open(|o| o.write(true).create(true), "new").await.unwrap();
        assert_eq!(c.read("new").await.unwrap(), b"content");
        c.symlink("dir/made", "link").await.unwrap();
        assert_eq!(kind(open(|o| o.write(true).create(true), "link").await), ErrorKind::NotFound);
        c.create_dir("dir").await.unwrap();
        open(|o| o.write(true).create(true), "link").await.unwrap();
        assert!(c.metadata("dir/made").await.unwrap().is_file());
        assert_eq!(kind(open(|o| o.write(true).create_new(true), "link").await), ErrorKind::AlreadyExists);
        open(|o| o.write(true).truncate(true), "new").await.unwrap();
        assert_eq!(c.metadata("new").await.unwrap().len(), 0);
        assert_eq!(kind(c.open("dir").await), ErrorKind::IsADirectory);
        c.symlink("loop", "loop").await.unwrap();
        assert_eq!(kind(open(|o| o.write(true).create(true), "loop").await), ErrorKind::InvalidInput);
    });
}

#[test]
fn the_server_checks_permissions_at_open() {
    on_all(|url| async move {
        let owner = Identity { uid: 1000, gid: 1000, gids: Vec::new(), machine: "a".into() };
        let other = Identity { uid: 1001, gid: 1001, ..owner.clone() };
        let root = connect(&url).await;
        root.create_dir("open").await.unwrap();
        root.set_permissions("open", 0o777).await.unwrap();
        let c = Client::builder(url("data"))
            .credential(owner)
            .nconnect(2)
            .retry(RetryPolicy::NONE)
            .connect()
            .await
            .unwrap();
        c.write("open/mine", "secret").await.unwrap();
        c.set_permissions("open/mine", 0o600).await.unwrap();
        assert_eq!(c.read("open/mine").await.unwrap(), b"secret");
        let c = c.as_caller(&other);
        let refused = c.open("open/mine").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        assert_eq!(refused.to_string(), "ACCESS open/mine: permission denied (NFSERR_ACCES)");
        assert_eq!(kind(c.create("open/mine").await), ErrorKind::PermissionDenied);
        assert_eq!(kind(c.write("open/mine", "x").await), ErrorKind::PermissionDenied);
        assert_eq!(kind(c.set_permissions("open/mine", 0o666).await), ErrorKind::PermissionDenied);
    });
}

#[test]
fn errors_convert_to_io_errors_with_their_sources() {
    use std::error::Error as _;
    on_all(|url| async move {
        let c = connect(&url).await;
        let error: std::io::Error = c.open("none").await.unwrap_err().into();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let inner = error.get_ref().unwrap().downcast_ref::<Error>().unwrap();
        assert_eq!(inner.status(), Some(millrace_client::ops::Status::NoEnt));
        assert_eq!(kind(Client::connect("http://x").await), ErrorKind::InvalidInput);
        assert_eq!(kind(Client::connect(url("absent")).await), ErrorKind::NotFound);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let refused = Client::connect(format!("nfs://127.0.0.1:{port}/x?proto=tcp")).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert!(refused.source().unwrap().is::<std::io::Error>());
        c.close();
        assert_eq!(kind(c.metadata("/").await), ErrorKind::NotConnected);
    });
}

#[test]
fn the_error_of_connecting_outside_a_runtime_has_a_remedy() {
    let connect = std::pin::pin!(Client::connect("nfs://127.0.0.1/x"));
    let Poll::Ready(connected) = connect.poll(&mut Context::from_waker(Waker::noop())) else {
        unreachable!()
    };
    let error = connected.unwrap_err();
    assert!(error.to_string().contains("ClientBuilder::runtime"), "{error}");
}
