//! Every NFSv3 procedure over both transports on every file system.

use millrace_nfs::v3::{
    self, AccessArgs, AccessOk, CommitArgs, CommitOk, CreateHow, CreateOk, DirOpArgs, FileHandle, FileType,
    FsinfoArgs, FsinfoOk, FsstatArgs, FsstatOk, LinkArgs, LinkOk, MkdirArgs, MknodArgs, MknodWhat, NfsTime,
    PathconfArgs, PathconfOk, PostOpAttr, Procedure, ReadArgs, ReadOk, ReaddirArgs, ReaddirOk,
    ReaddirplusArgs, ReaddirplusOk, ReadlinkArgs, ReadlinkOk, RemoveArgs, RenameArgs, RenameOk, Res,
    RmdirArgs, Sattr, SetTime, SetattrArgs, StableHow, Status, SymlinkArgs, WccData, WriteArgs,
};

use crate::common::{Caller, at, everywhere, sys};

type Wcc = Res<WccData, WccData>;
type Created = Res<CreateOk, WccData>;

fn mode(mode: u32) -> Sattr {
    Sattr { mode: Some(mode), ..Sattr::default() }
}

async fn mkdir(c: &Caller, dir: FileHandle, name: &str) -> FileHandle {
    let res: Created =
        c.nfs(Procedure::Mkdir, &MkdirArgs { where_: at(dir, name), attributes: mode(0o755) }).await;
    res.into_result().unwrap().object.unwrap()
}

async fn remove(c: &Caller, dir: FileHandle, name: &str) -> Status {
    let res: Wcc = c.nfs(Procedure::Remove, &RemoveArgs { object: at(dir, name) }).await;
    res.status()
}

#[test]
fn written_data_is_read_back() {
    everywhere(async |c, root| {
        let f = c.create(root, "f").await;
        let data: Vec<u8> = (0..1_048_576u32).map(|i| (i * 7 % 251) as u8).collect();
        let w = c.write(f, 0, &data, StableHow::Unstable).await.unwrap();
        assert_eq!((w.count, w.file.after.unwrap().size), (1 << 20, 1 << 20));
        let small = c.write(f, 5000, b"island", StableHow::FileSync).await.unwrap();
        assert_eq!((small.count, small.committed), (6, StableHow::FileSync));
        assert_eq!(small.verifier, w.verifier);
        let res: Res<CommitOk, WccData> =
            c.nfs(Procedure::Commit, &CommitArgs { file: f, offset: 0, count: 0 }).await;
        assert_eq!(res.into_result().unwrap().verifier, w.verifier);
        let (back, eof) = c.read(f, 0, 1 << 20).await.unwrap();
        assert!(
            eof && back[..5000] == data[..5000]
                && &back[5000..5006] == b"island"
                && back[5006..] == data[5006..]
        );
    });
}

#[test]
fn reads_at_and_beyond_the_end_report_eof() {
    everywhere(async |c, root| {
        let f = c.create(root, "f").await;
        c.write(f, 0, b"0123456789", StableHow::FileSync).await.unwrap();
        assert_eq!(c.read(f, 0, 5).await.unwrap(), (b"01234".to_vec(), false));
        assert_eq!(c.read(f, 5, 5).await.unwrap(), (b"56789".to_vec(), true));
        assert_eq!(c.read(f, 7, 100).await.unwrap(), (b"789".to_vec(), true));
        assert_eq!(c.read(f, 10, 1).await.unwrap(), (vec![], true));
        assert_eq!(c.read(f, 1 << 40, 9).await.unwrap(), (vec![], true));
        assert_eq!(c.read(f, u64::MAX, u32::MAX).await.unwrap_err(), Status::Inval);
        assert!(c.read(root, 0, 1).await.is_err());
        // Longer than rtmax: a short read.
        c.write(f, (1 << 20) + 9, b"x", StableHow::FileSync).await.unwrap();
        let (long, eof) = c.read(f, 0, 2 << 20).await.unwrap();
        assert_eq!((long.len(), eof), (1 << 20, false));
    });
}

#[test]
fn invalid_writes_are_rejected() {
    everywhere(async |c, root| {
        let f = c.create(root, "f").await;
        let data = || millrace_xdr::Views::from(c.arena.copy_from(b"12345678").unwrap());
        let args =
            |offset, count| WriteArgs { file: f, offset, count, stable: StableHow::Unstable, data: data() };
        assert_eq!(c.write_args(&args(0, 7)).await.unwrap_err(), Status::Inval);
        assert_eq!(c.write_args(&args(0, 4096)).await.unwrap_err(), Status::Inval);
        assert_eq!(c.write_args(&args(u64::MAX - 3, 8)).await.unwrap_err(), Status::FBig);
        assert_eq!(c.write_args(&args(0, 8)).await.unwrap().count, 8);
        assert_eq!(c.getattr(f).await.unwrap().size, 8);
        let empty = c.write(f, 3, b"", StableHow::FileSync).await.unwrap();
        assert_eq!((empty.count, c.getattr(f).await.unwrap().size), (0, 8));
    });
}

#[test]
fn attributes_are_set_and_guarded() {
    everywhere(async |c, root| {
        let f = c.create(root, "f").await;
        let before = c.getattr(f).await.unwrap();
        let time = NfsTime { seconds: 1_000_000_000, nanoseconds: 123_456_789 };
        let attributes = Sattr {
            mode: Some(0o4751),
            size: Some(1000),
            mtime: SetTime::ClientTime(time),
            atime: SetTime::ServerTime,
            ..Sattr::default()
        };
        let set = |guard| SetattrArgs { object: f, attributes, guard };
        let wrong = NfsTime { seconds: before.ctime.seconds.wrapping_sub(5), ..before.ctime };
        let res: Wcc = c.nfs(Procedure::Setattr, &set(Some(wrong))).await;
        assert_eq!(res.status(), Status::NotSync);
        assert_eq!(c.getattr(f).await.unwrap().mode, before.mode);
        let res: Wcc = c.nfs(Procedure::Setattr, &set(Some(before.ctime))).await;
        assert!(res.into_result().unwrap().after.is_some());
        let after = c.getattr(f).await.unwrap();
        assert_eq!((after.mode, after.size, after.mtime), (0o4751, 1000, time));
        let bad = NfsTime { seconds: 1, nanoseconds: 1_000_000_000 };
        let attributes = Sattr { atime: SetTime::ClientTime(bad), ..Sattr::default() };
        let res: Wcc = c.nfs(Procedure::Setattr, &SetattrArgs { object: f, attributes, guard: None }).await;
        assert_eq!(res.status(), Status::Inval);
    });
}

#[test]
fn creation_follows_its_mode() {
    everywhere(async |c, root| {
        let f = c.create_how(root, "f", CreateHow::Unchecked(mode(0o640))).await.unwrap();
        c.write(f, 0, b"content", StableHow::FileSync).await.unwrap();
        assert_eq!(c.create_how(root, "f", CreateHow::Guarded(mode(0o600))).await, Err(Status::Exist));
        assert_eq!(c.create_how(root, "f", CreateHow::Unchecked(mode(0o600))).await, Ok(f));
        assert_eq!(c.getattr(f).await.unwrap().size, 7);
        let cut = Sattr { size: Some(0), ..Sattr::default() };
        c.create_how(root, "f", CreateHow::Unchecked(cut)).await.unwrap();
        assert_eq!(c.getattr(f).await.unwrap().size, 0);
        let e = c.create_how(root, "e", CreateHow::Exclusive(*b"verifier")).await.unwrap();
        assert_eq!(c.create_how(root, "e", CreateHow::Exclusive(*b"verifier")).await, Ok(e));
        assert_eq!(c.create_how(root, "e", CreateHow::Exclusive(*b"another!")).await, Err(Status::Exist));
        assert_eq!(c.create_how(f, "x", CreateHow::Guarded(mode(0o600))).await, Err(Status::NotDir));
        let long = "n".repeat(256);
        assert_eq!(
            c.create_how(root, &long, CreateHow::Guarded(mode(0o600))).await,
            Err(Status::NameTooLong)
        );
        for name in ["", "a/b", "a\0b"] {
            let made = c.create_how(root, name, CreateHow::Guarded(mode(0o600))).await;
            assert!(made.is_err(), "{name:?}");
        }
    });
}

#[test]
fn hard_and_symbolic_links_refer_to_their_targets() {
    everywhere(async |c, root| {
        let f = c.create(root, "f").await;
        let args = LinkArgs { file: f, link: at(root, "hard") };
        let res: Res<LinkOk, LinkOk> = c.nfs(Procedure::Link, &args).await;
        let ok = res.into_result().unwrap();
        assert_eq!(ok.file.unwrap().nlink, 2);
        assert_eq!(c.lookup(root, "hard").await.unwrap().1.fileid, c.getattr(f).await.unwrap().fileid);
        let target = c.arena.copy_from(b"some/where").unwrap().into();
        let args = SymlinkArgs { where_: at(root, "soft"), attributes: mode(0o777), target };
        let res: Created = c.nfs(Procedure::Symlink, &args).await;
        let soft = res.into_result().unwrap().object.unwrap();
        let res: Res<ReadlinkOk, PostOpAttr> =
            c.nfs(Procedure::Readlink, &ReadlinkArgs { symlink: soft }).await;
        let ok = res.into_result().unwrap();
        assert_eq!(ok.target.to_vec(), b"some/where");
        assert_eq!(ok.attributes.unwrap().file_type, FileType::Symlink);
        let res: Res<ReadlinkOk, PostOpAttr> = c.nfs(Procedure::Readlink, &ReadlinkArgs { symlink: f }).await;
        let (status, attr) = res.into_result().unwrap_err();
        assert_eq!((status, attr.is_some()), (Status::Inval, true));
    });
}

#[test]
fn special_files_are_created_and_other_types_rejected() {
    everywhere(async |c, root| {
        let fifo = MknodArgs { where_: at(root, "p"), what: MknodWhat::Fifo(mode(0o600)) };
        let res: Created = c.nfs(Procedure::Mknod, &fifo).await;
        assert_eq!(res.into_result().unwrap().attributes.unwrap().file_type, FileType::Fifo);
        let dir = MknodArgs { where_: at(root, "d"), what: MknodWhat::Other(FileType::Directory) };
        let res: Created = c.nfs(Procedure::Mknod, &dir).await;
        let (status, wcc) = res.into_result().unwrap_err();
        assert_eq!((status, wcc.after.is_some()), (Status::BadType, true));
    });
}

#[test]
fn names_are_removed_and_renamed() {
    everywhere(async |c, root| {
        let d = mkdir(c, root, "d").await;
        let f = c.create(d, "f").await;
        let rmdir = async |dir, name| {
            let res: Wcc = c.nfs(Procedure::Rmdir, &RmdirArgs { object: at(dir, name) }).await;
            res.status()
        };
        assert_eq!(rmdir(root, "d").await, Status::NotEmpty);
        assert_eq!(remove(c, root, "d").await, Status::IsDir);
        assert_eq!(remove(c, root, "none").await, Status::NoEnt);
        let rename = async |from: DirOpArgs<'_>, to: DirOpArgs<'_>| {
            let res: Res<RenameOk, RenameOk> = c.nfs(Procedure::Rename, &RenameArgs { from, to }).await;
            let status = res.status();
            let both = res.into_result().unwrap_or_else(|(_, after)| after);
            assert!(both.from.after.is_some() && both.to.after.is_some());
            status
        };
        assert_eq!(rename(at(d, "f"), at(root, "g")).await, Status::Ok);
        assert_eq!(c.lookup(d, "f").await.unwrap_err(), Status::NoEnt);
        assert_eq!(c.lookup(root, "g").await.unwrap().0, f);
        assert_eq!(rename(at(root, "d"), at(d, "inside")).await, Status::Inval);
        assert_eq!(rmdir(root, "d").await, Status::Ok);
        assert_eq!(rmdir(root, "g").await, Status::NotDir);
        assert_eq!(remove(c, root, "g").await, Status::Ok);
        assert_eq!(c.getattr(f).await, Err(Status::Stale));
    });
}

#[test]
fn a_lookup_never_leaves_the_export() {
    everywhere(async |c, root| {
        let d = mkdir(c, root, "d").await;
        assert_eq!(c.lookup(root, "..").await.unwrap().0, root);
        assert_eq!(c.lookup(root, ".").await.unwrap().0, root);
        assert_eq!(c.lookup(d, "..").await.unwrap().0, root);
        assert!(c.lookup(root, "d/../..").await.is_err());
    });
}

/// Reads a whole directory with pages of `count` bytes and checks the size of each page.
async fn list(c: &Caller, dir: FileHandle, count: u32) -> Vec<String> {
    let (mut names, mut cookie, mut verifier) = (Vec::new(), 0, [0; 8]);
    loop {
        let args = ReaddirArgs { dir, cookie, verifier, count };
        let room = count as usize;
        let eof = c
            .nfs_with(Procedure::Readdir, &args, room, |d| {
                let bytes = d.remaining();
                let res: Res<ReaddirOk<'_>, PostOpAttr> = d.get().unwrap();
                assert!(bytes - 4 <= count as usize, "{bytes} bytes for a count of {count}");
                let page = res.into_result().unwrap();
                for e in &page.entries {
                    names.push(String::from_utf8(e.name.to_vec()).unwrap());
                    cookie = e.cookie;
                }
                verifier = page.verifier;
                assert!(page.eof || !page.entries.is_empty());
                page.eof
            })
            .await;
        if eof {
            names.sort();
            return names;
        }
    }
}

#[test]
fn directories_are_listed_completely_with_any_page_size() {
    everywhere(async |c, root| {
        let mut expected: Vec<String> = (0..150).map(|i| format!("file-{i:03}")).collect();
        for name in &expected {
            c.create(root, name).await;
        }
        expected.extend([".".to_owned(), "..".to_owned()]);
        expected.sort();
        for count in [200, 512, 4096, 1 << 20] {
            assert_eq!(list(c, root, count).await, expected, "count {count}");
        }
        let args = ReaddirArgs { dir: root, cookie: 0, verifier: [0; 8], count: 100 };
        let res = c.nfs_with(Procedure::Readdir, &args, 200, |d| {
            d.get::<Res<ReaddirOk<'_>, PostOpAttr>>().unwrap().status()
        });
        assert_eq!(res.await, Status::TooSmall);
    });
}

#[test]
fn a_listing_with_attributes_gives_usable_handles() {
    everywhere(async |c, root| {
        for i in 0..40 {
            c.create(root, &format!("f{i}")).await;
        }
        let (mut seen, mut cookie, mut verifier) = (Vec::new(), 0, [0; 8]);
        loop {
            let args = ReaddirplusArgs { dir: root, cookie, verifier, dircount: 400, maxcount: 2000 };
            let eof = c
                .nfs_with(Procedure::Readdirplus, &args, 2000, |d| {
                    let bytes = d.remaining();
                    let page = d.get::<Res<ReaddirplusOk<'_>, PostOpAttr>>().unwrap().into_result().unwrap();
                    assert!(bytes - 4 <= 2000);
                    for e in &page.entries {
                        seen.push((
                            String::from_utf8(e.name.to_vec()).unwrap(),
                            e.fileid,
                            e.attributes,
                            e.handle,
                        ));
                        cookie = e.cookie;
                    }
                    verifier = page.verifier;
                    page.eof
                })
                .await;
            if eof {
                break;
            }
        }
        assert_eq!(seen.len(), 42);
        for (name, fileid, attr, handle) in seen.iter().filter(|(n, ..)| n.starts_with('f')) {
            let attr = attr.unwrap();
            assert_eq!(*fileid, attr.fileid);
            let (looked_up, _) = c.lookup(root, name).await.unwrap();
            assert_eq!(looked_up, handle.unwrap(), "{name}");
        }
    });
}

#[test]
fn a_cookie_survives_the_removal_of_its_entry() {
    everywhere(async |c, root| {
        for i in 0..30 {
            c.create(root, &format!("f{i:02}")).await;
        }
        let args = ReaddirArgs { dir: root, cookie: 0, verifier: [0; 8], count: 400 };
        let (first, verifier) = c
            .nfs_with(Procedure::Readdir, &args, 400, |d| {
                let page = d.get::<Res<ReaddirOk<'_>, PostOpAttr>>().unwrap().into_result().unwrap();
                let all: Vec<_> = page
                    .entries
                    .iter()
                    .map(|e| (String::from_utf8(e.name.to_vec()).unwrap(), e.cookie))
                    .collect();
                (all, page.verifier)
            })
            .await;
        for (name, _) in first.iter().filter(|(n, _)| n.starts_with('f')) {
            assert_eq!(remove(c, root, name).await, Status::Ok);
        }
        let (mut names, mut cookie): (Vec<String>, _) =
            (first.iter().map(|(n, _)| n.clone()).collect(), first.last().unwrap().1);
        loop {
            let args = ReaddirArgs { dir: root, cookie, verifier, count: 400 };
            let eof = c
                .nfs_with(Procedure::Readdir, &args, 400, |d| {
                    let page = d.get::<Res<ReaddirOk<'_>, PostOpAttr>>().unwrap().into_result().unwrap();
                    for e in &page.entries {
                        names.push(String::from_utf8(e.name.to_vec()).unwrap());
                        cookie = e.cookie;
                    }
                    page.eof
                })
                .await;
            if eof {
                break;
            }
        }
        names.sort();
        let mut expected: Vec<String> = (0..30).map(|i| format!("f{i:02}")).collect();
        expected.extend([".".to_owned(), "..".to_owned()]);
        expected.sort();
        assert_eq!(names, expected);
    });
}

#[test]
fn the_file_system_describes_itself() {
    everywhere(async |c, root| {
        let res: Res<FsinfoOk, PostOpAttr> = c.nfs(Procedure::Fsinfo, &FsinfoArgs { root }).await;
        let info = res.into_result().unwrap();
        assert!(info.attributes.is_some());
        assert_eq!((info.read_max, info.write_max, info.read_multiple), (1 << 20, 1 << 20, 4096));
        assert_eq!(info.properties, 0x1b);
        assert!(info.max_file_size >= 1 << 40);
        let res: Res<FsstatOk, PostOpAttr> = c.nfs(Procedure::Fsstat, &FsstatArgs { root }).await;
        let stat = res.into_result().unwrap();
        assert!(stat.total_bytes >= stat.free_bytes && stat.total_bytes > 0);
        let res: Res<PathconfOk, PostOpAttr> =
            c.nfs(Procedure::Pathconf, &PathconfArgs { object: root }).await;
        let path = res.into_result().unwrap();
        assert_eq!(
            (path.name_max, path.no_trunc, path.case_insensitive, path.case_preserving),
            (255, true, false, true)
        );
    });
}

#[test]
fn access_depends_on_the_identity() {
    everywhere(async |c, root| {
        let f = c.create(root, "f").await;
        let attributes = Sattr { mode: Some(0o640), uid: Some(1000), gid: Some(100), ..Sattr::default() };
        let res: Wcc = c.nfs(Procedure::Setattr, &SetattrArgs { object: f, attributes, guard: None }).await;
        if res.status() != Status::Ok {
            return; // Without root, a local export cannot change the owner of files.
        }
        let rights = async |uid, gid| {
            let args = AccessArgs { object: f, access: 0x3f };
            let res: Res<AccessOk, PostOpAttr> = c.with(sys(uid, gid)).nfs(Procedure::Access, &args).await;
            res.into_result().unwrap().access
        };
        let read_write = v3::access::READ | v3::access::MODIFY | v3::access::EXTEND;
        assert_eq!(rights(1000, 1).await & read_write, read_write);
        assert_eq!(rights(7, 100).await & read_write, v3::access::READ);
        assert_eq!(rights(7, 7).await & read_write, 0);
        let res: Res<ReadOk, PostOpAttr> =
            c.with(sys(7, 7)).nfs(Procedure::Read, &ReadArgs { file: f, offset: 0, count: 9 }).await;
        let (status, attr) = res.into_result().unwrap_err();
        assert_eq!((status, attr.is_some()), (Status::Access, true));
    });
}

#[test]
fn two_clients_change_one_directory() {
    everywhere(async |c, root| {
        let other = c.with(sys(0, 0));
        let make = async |c: &Caller, who: &str| {
            for i in 0..60 {
                let name = format!("{who}{i}");
                c.create(root, &name).await;
                if i % 3 == 0 {
                    assert_eq!(remove(c, root, &name).await, Status::Ok);
                }
                // Both clients create this name; exactly one succeeds.
                let _ = c.create_how(root, &format!("shared{i}"), CreateHow::Guarded(mode(0o644))).await;
            }
        };
        futures::join!(make(c, "a"), make(&other, "b"));
        let names = list(c, root, 1024).await;
        assert_eq!(names.len(), 2 + 40 + 40 + 60);
    });
}
