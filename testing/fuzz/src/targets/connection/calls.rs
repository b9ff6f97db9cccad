//! Correct calls to the server of a scene.

use std::sync::OnceLock;

use millrace_client::Proto;
use millrace_nfs::{
    mount,
    v3::{
        self, CreateArgs, CreateHow, DirOpArgs, FileHandle, GetattrArgs, LookupArgs, Procedure, ReadArgs,
        ReaddirArgs, ReaddirplusArgs, RemoveArgs, RenameArgs, Sattr, SetattrArgs, StableHow, SymlinkArgs,
        WriteArgs,
    },
};
use millrace_oncrpc::{AuthSys, Credential, call_header};
use millrace_xdr::Encode;

use super::scene::{FULL, Kind, Scene};
use crate::targets::xdr::{flat, message, view};

/// A call with the transaction ID `xid`.
pub(super) fn call(xid: u32, (prog, vers, proc): (u32, u32, u32), args: &impl Encode) -> Vec<u8> {
    let mut call = message(|e| {
        call_header(e, prog, vers, proc, &Credential::Sys(AuthSys::default()));
        e.put(args);
    });
    assert!(call.set_xid(xid));
    flat(&call)
}

/// The handles of the root of `/data` and of [`FULL`] in it, which are the same in every scene.
fn handles() -> [FileHandle; 2] {
    let handles = [true, false].map(|read_only| {
        let scene = Scene::new(Kind { read_only, proto: Proto::Tcp });
        let handles = scene.time.block_on(async {
            let client = scene.net.mount(&scene.rt, 1, Proto::Tcp, "/data").await.expect("a mount");
            let full = client.lookup(client.root(), FULL).await.expect("a file");
            [client.root(), full.handle]
                .map(|handle| FileHandle::new(handle.as_bytes()).expect("a handle of NFSv3"))
        });
        handles.expect("the mount ends")
    });
    assert_eq!(handles[0], handles[1], "handles differ between scenes");
    handles[0]
}

/// Calls of many procedures, with transaction IDs from 1.
pub(super) fn calls() -> &'static [Vec<u8>] {
    static CALLS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    CALLS.get_or_init(make)
}

fn make() -> Vec<Vec<u8>> {
    let [dir, file] = handles();
    let place = DirOpArgs { dir, name: b"new" };
    let nfs = |proc: Procedure| (v3::PROGRAM, v3::VERSION, proc.number());
    let data = || view(&[b'w'; 600]).into();
    let (cookie, verifier) = (0, [0; 8]);
    let write = WriteArgs { file, offset: 0, count: 600, stable: StableHow::FileSync, data: data() };
    let symlink =
        SymlinkArgs { where_: place, attributes: Sattr::default(), target: view(b"to/there").into() };
    let plus = ReaddirplusArgs { dir, cookie, verifier, dircount: 512, maxcount: 4096 };
    let mnt = (mount::PROGRAM, mount::VERSION, mount::Procedure::Mnt.number());
    let export = (mount::PROGRAM, mount::VERSION, mount::Procedure::Export.number());
    vec![
        call(1, nfs(Procedure::Null), &()),
        call(2, mnt, &mount::Dirpath(b"/data")),
        call(3, export, &()),
        call(4, nfs(Procedure::Getattr), &GetattrArgs { object: dir }),
        call(5, nfs(Procedure::Lookup), &LookupArgs { what: place }),
        call(6, nfs(Procedure::Read), &ReadArgs { file, offset: 0, count: 512 }),
        call(7, nfs(Procedure::Write), &write),
        call(
            8,
            nfs(Procedure::Create),
            &CreateArgs { where_: place, how: CreateHow::Guarded(Sattr::default()) },
        ),
        call(9, nfs(Procedure::Symlink), &symlink),
        call(10, nfs(Procedure::Readdir), &ReaddirArgs { dir, cookie, verifier, count: 1024 }),
        call(11, nfs(Procedure::Readdirplus), &plus),
        call(12, nfs(Procedure::Rename), &RenameArgs { from: place, to: DirOpArgs { dir, name: b"old" } }),
        call(13, nfs(Procedure::Remove), &RemoveArgs { object: place }),
        call(
            14,
            nfs(Procedure::Setattr),
            &SetattrArgs {
                object: file,
                attributes: Sattr { mode: Some(0o755), ..Sattr::default() },
                guard: None,
            },
        ),
    ]
}
