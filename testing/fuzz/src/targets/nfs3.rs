//! Arguments and results of NFS version 3 and of MOUNT version 3.

use ::millrace_xdr::{Decoder, Payload};
use millrace_nfs::v3::{
    AccessArgs, CommitArgs, CreateArgs, CreateHow, DirOpArgs, EntryPlus, Fattr, FileHandle, FileType,
    FsinfoArgs, FsstatArgs, GetattrArgs, LinkArgs, LookupArgs, MkdirArgs, MknodArgs, MknodWhat, NfsTime,
    PathconfArgs, ReadArgs, ReaddirArgs, ReaddirplusArgs, ReadlinkArgs, RemoveArgs, RenameArgs, RmdirArgs,
    Sattr, SetattrArgs, SpecData, StableHow, SymlinkArgs, WriteArgs,
};

use super::xdr::{codec, encoded, received, view};
use crate::{bytes::Input, heap::bounded};

pub(super) const HANDLE: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8];
const ATTRIBUTES: Fattr = Fattr {
    file_type: FileType::Regular,
    mode: 0o644,
    nlink: 2,
    uid: 1000,
    gid: 100,
    size: 0x1_0000_0002,
    used: 4096,
    rdev: SpecData { major: 8, minor: 1 },
    fsid: 0x1122_3344_5566_7788,
    fileid: 42,
    atime: NfsTime { seconds: 1, nanoseconds: 2 },
    mtime: NfsTime { seconds: 3, nanoseconds: 4 },
    ctime: NfsTime { seconds: 5, nanoseconds: 6 },
};

fn handle() -> FileHandle {
    FileHandle::new(HANDLE).expect("a short handle")
}

fn name() -> DirOpArgs<'static> {
    DirOpArgs { dir: handle(), name: b"file" }
}

/// Seeds of the arguments of each procedure, in order of the procedures' numbers from GETATTR on.
fn arguments() -> Vec<Vec<u8>> {
    let (object, file, place) = (handle(), handle(), name());
    let attributes = Sattr { mode: Some(0o600), size: Some(7), ..Sattr::default() };
    let cookie = 3;
    let device = SpecData { major: 1, minor: 2 };
    let data = view(b"hello, world").into();
    vec![
        encoded(|e| e.put(&GetattrArgs { object })),
        encoded(|e| e.put(&SetattrArgs { object, attributes, guard: Some(ATTRIBUTES.ctime) })),
        encoded(|e| e.put(&LookupArgs { what: place })),
        encoded(|e| e.put(&AccessArgs { object, access: 0x3f })),
        encoded(|e| e.put(&ReadlinkArgs { symlink: object })),
        encoded(|e| e.put(&ReadArgs { file, offset: 0, count: 4096 })),
        encoded(|e| e.put(&WriteArgs { file, offset: 0, count: 12, stable: StableHow::FileSync, data })),
        encoded(|e| e.put(&CreateArgs { where_: place, how: CreateHow::Exclusive([7; 8]) })),
        encoded(|e| e.put(&MkdirArgs { where_: place, attributes })),
        encoded(|e| e.put(&SymlinkArgs { where_: place, attributes, target: view(b"to/there").into() })),
        encoded(|e| e.put(&MknodArgs { where_: place, what: MknodWhat::Block(attributes, device) })),
        encoded(|e| e.put(&RemoveArgs { object: place })),
        encoded(|e| e.put(&RmdirArgs { object: place })),
        encoded(|e| e.put(&RenameArgs { from: place, to: place })),
        encoded(|e| e.put(&LinkArgs { file, link: place })),
        encoded(|e| e.put(&ReaddirArgs { dir: object, cookie, verifier: [1; 8], count: 512 })),
        encoded(|e| {
            let (dircount, maxcount) = (512, 4096);
            e.put(&ReaddirplusArgs { dir: object, cookie, verifier: [1; 8], dircount, maxcount });
        }),
        encoded(|e| e.put(&FsstatArgs { root: object })),
        encoded(|e| e.put(&FsinfoArgs { root: object })),
        encoded(|e| e.put(&PathconfArgs { object })),
        encoded(|e| e.put(&CommitArgs { file, offset: 0, count: 0 })),
    ]
}

/// Calls the macro `$do` with the type of the arguments of procedure `$number`.
macro_rules! arguments_of {
    ($number:expr, $do:ident) => {
        match $number {
            1 => $do!(GetattrArgs),
            2 => $do!(SetattrArgs),
            3 => $do!(LookupArgs<'_>),
            4 => $do!(AccessArgs),
            5 => $do!(ReadlinkArgs),
            6 => $do!(ReadArgs),
            7 => $do!(WriteArgs),
            8 => $do!(CreateArgs<'_>),
            9 => $do!(MkdirArgs<'_>),
            10 => $do!(SymlinkArgs<'_>),
            11 => $do!(MknodArgs<'_>),
            12 => $do!(RemoveArgs<'_>),
            13 => $do!(RmdirArgs<'_>),
            14 => $do!(RenameArgs<'_>),
            15 => $do!(LinkArgs<'_>),
            16 => $do!(ReaddirArgs),
            17 => $do!(ReaddirplusArgs),
            18 => $do!(FsstatArgs),
            19 => $do!(FsinfoArgs),
            20 => $do!(PathconfArgs),
            _ => $do!(CommitArgs),
        }
    };
}

/// The arguments. Input: a procedure, the form of the message (flat; with a payload beside the head; with
/// padding before its items, as in RDMA_MSGP), and the bytes.
pub(super) mod args {
    use super::*;

    /// Executes the target with `input`.
    pub(in crate::targets) fn run(input: &[u8]) {
        let mut input = Input::new(input);
        let (procedure, form, a, b) = (input.u8() % 21 + 1, input.u8(), input.u8(), input.u8());
        let bytes = input.rest();
        if form == 0 {
            macro_rules! check {
                ($t:ty) => {
                    codec!(bytes, |d| d.get::<$t>(), |v, e| e.put(&v))
                };
            }
            return arguments_of!(procedure, check);
        }
        let (beside, head) = bytes.split_at(usize::from(b).min(bytes.len()));
        let mut message = received(head);
        message.payloads.push(Payload { position: usize::from(a) * 4, data: view(beside).into() });
        macro_rules! decode {
            ($t:ty) => {
                drop(bounded(bytes.len(), || Decoder::new(&message).get::<$t>()))
            };
        }
        arguments_of!(procedure, decode);
    }

    /// Correct arguments of each procedure.
    pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
        let flat = (0..).zip(arguments()).map(|(n, bytes)| [&[n, 0, 0, 0][..], &bytes].concat());
        let write = arguments().swap_remove(6);
        let (head, data) = write.split_at(write.len() - 12);
        // WRITE's data begins after 36 bytes of the head.
        let beside = [&[6, 1, 9, 12][..], data, head].concat();
        let padded = [&[6, 2, 1, 255][..], &write].concat();
        flat.chain([beside, padded]).collect()
    }
}

/// The results. Input: a procedure, and the bytes.
pub(super) mod results {
    use ::millrace_xdr::Encoder;
    use millrace_nfs::v3::{
        AccessFail, AccessOk, CommitFail, CommitOk, CreateFail, CreateOk, FsinfoFail, FsinfoOk, FsstatFail,
        FsstatOk, GetattrFail, GetattrOk, LinkFail, LinkOk, LookupFail, LookupOk, PathconfFail, PathconfOk,
        ReadFail, ReadOk, ReaddirEncoder, ReaddirFail, ReaddirOk, ReaddirplusEncoder, ReaddirplusFail,
        ReaddirplusOk, ReadlinkFail, ReadlinkOk, RemoveFail, RemoveOk, RenameFail, RenameOk, Res,
        SetattrFail, SetattrOk, Status, WccData, WriteFail, WriteOk,
    };

    use super::*;

    /// Executes the target with `input`.
    pub(in crate::targets) fn run(input: &[u8]) {
        let mut input = Input::new(input);
        let procedure = input.u8() % 21 + 1;
        let bytes = input.rest();
        macro_rules! check {
            ($ok:ty, $fail:ty) => {
                codec!(bytes, |d| d.get::<Res<$ok, $fail>>(), |v, e| e.put(&v))
            };
        }
        match procedure {
            1 => check!(GetattrOk, GetattrFail),
            2 => check!(SetattrOk, SetattrFail),
            3 => check!(LookupOk, LookupFail),
            4 => check!(AccessOk, AccessFail),
            5 => check!(ReadlinkOk, ReadlinkFail),
            6 => check!(ReadOk, ReadFail),
            7 => check!(WriteOk, WriteFail),
            8..=11 => check!(CreateOk, CreateFail),
            12 | 13 => check!(RemoveOk, RemoveFail),
            14 => check!(RenameOk, RenameFail),
            15 => check!(LinkOk, LinkFail),
            16 => codec!(bytes, |d| d.get::<Res<ReaddirOk<'_>, ReaddirFail>>(), |v, e| readdir(&v, e)),
            17 => {
                codec!(bytes, |d| d.get::<Res<ReaddirplusOk<'_>, ReaddirplusFail>>(), |v, e| {
                    readdirplus(&v, e);
                });
            }
            18 => check!(FsstatOk, FsstatFail),
            19 => check!(FsinfoOk, FsinfoFail),
            20 => check!(PathconfOk, PathconfFail),
            _ => check!(CommitOk, CommitFail),
        }
    }

    fn readdir(res: &Res<ReaddirOk<'_>, ReaddirFail>, e: &mut Encoder) {
        match res {
            Res::Ok(ok) => {
                let mut list = ReaddirEncoder::begin(e, &ok.attributes, ok.verifier, u32::MAX);
                ok.entries.iter().for_each(|x| assert!(list.push(x.fileid, x.name, x.cookie)));
                list.finish(ok.eof).expect("room");
            }
            Res::Err(status, attributes) => {
                e.put(status);
                e.put(attributes);
            }
        }
    }

    fn readdirplus(res: &Res<ReaddirplusOk<'_>, ReaddirplusFail>, e: &mut Encoder) {
        match res {
            Res::Ok(ok) => {
                let mut list = ReaddirplusEncoder::begin(e, &ok.attributes, ok.verifier, 0, u32::MAX);
                ok.entries.iter().for_each(|entry| assert!(list.push(entry)));
                list.finish(ok.eof).expect("room");
            }
            Res::Err(status, attributes) => {
                e.put(status);
                e.put(attributes);
            }
        }
    }

    fn with(procedure: u8, put: impl FnOnce(&mut Encoder)) -> Vec<u8> {
        let mut out = vec![procedure - 1];
        out.extend(encoded(put));
        out
    }

    /// Correct results of each procedure.
    pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
        let attributes = Some(ATTRIBUTES);
        let (dir, file, wcc) = (attributes, WccData::default(), WccData::default());
        let (verifier, object) = ([9; 8], handle());
        let created = Res::<_, CreateFail>::Ok(CreateOk { object: Some(object), attributes, dir: wcc });
        let entries = vec![
            EntryPlus { fileid: 1, name: b".", cookie: 1, attributes, handle: Some(object) },
            EntryPlus { fileid: 2, name: b"a-file", cookie: 2, attributes: None, handle: None },
        ];
        let plus = ReaddirplusOk { attributes, verifier, entries, eof: true };
        let names = plus.entries.iter();
        let entries =
            names.map(|e| millrace_nfs::v3::Entry { fileid: e.fileid, name: e.name, cookie: e.cookie });
        let list = ReaddirOk { attributes, verifier, entries: entries.collect(), eof: true };
        let fsstat = FsstatOk {
            attributes,
            total_bytes: 1 << 40,
            free_bytes: 1 << 39,
            available_bytes: 1 << 38,
            total_files: 1000,
            free_files: 500,
            available_files: 400,
            invariant_seconds: 0,
        };
        let fsinfo = FsinfoOk {
            attributes: None,
            read_max: 1 << 20,
            read_preferred: 1 << 20,
            read_multiple: 4096,
            write_max: 1 << 20,
            write_preferred: 1 << 20,
            write_multiple: 4096,
            readdir_preferred: 128 << 10,
            max_file_size: i64::MAX as u64,
            time_delta: NfsTime { seconds: 0, nanoseconds: 1 },
            properties: 0x1b,
        };
        let pathconf = PathconfOk {
            attributes,
            link_max: 32000,
            name_max: 255,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        };
        let target = view(b"to/there").into();
        let read = ReadOk { attributes, count: 5, eof: true, data: view(b"hello").into() };
        let written = WriteOk { file, count: 12, committed: StableHow::Unstable, verifier };
        vec![
            with(1, |e| e.put(&Res::<_, GetattrFail>::Ok(GetattrOk { attributes: ATTRIBUTES }))),
            with(1, |e| e.put(&Res::<GetattrOk, GetattrFail>::Err(Status::Stale, ()))),
            with(2, |e| e.put(&Res::<SetattrOk, SetattrFail>::Ok(wcc))),
            with(3, |e| e.put(&Res::<_, LookupFail>::Ok(LookupOk { object, attributes, dir }))),
            with(4, |e| e.put(&Res::<_, AccessFail>::Ok(AccessOk { attributes, access: 0x1f }))),
            with(5, |e| e.put(&Res::<_, ReadlinkFail>::Ok(ReadlinkOk { attributes, target }))),
            with(6, |e| e.put(&Res::<_, ReadFail>::Ok(read))),
            with(7, |e| e.put(&Res::<_, WriteFail>::Ok(written))),
            with(8, |e| e.put(&created)),
            with(8, |e| e.put(&Res::<CreateOk, CreateFail>::Err(Status::Exist, wcc))),
            with(12, |e| e.put(&Res::<RemoveOk, RemoveFail>::Ok(wcc))),
            with(14, |e| e.put(&Res::<_, RenameFail>::Ok(RenameOk { from: wcc, to: wcc }))),
            with(15, |e| e.put(&Res::<_, LinkFail>::Ok(LinkOk { file: attributes, dir: wcc }))),
            with(16, |e| readdir(&Res::Ok(list), e)),
            with(17, |e| readdirplus(&Res::Ok(plus), e)),
            with(18, |e| e.put(&Res::<_, FsstatFail>::Ok(fsstat))),
            with(19, |e| e.put(&Res::<_, FsinfoFail>::Ok(fsinfo))),
            with(20, |e| e.put(&Res::<_, PathconfFail>::Ok(pathconf))),
            with(21, |e| e.put(&Res::<_, CommitFail>::Ok(CommitOk { file, verifier }))),
        ]
    }
}

/// MOUNT. Input: the kind of item (a path, the result of MNT, DUMP or EXPORT), and the bytes.
pub(super) mod mount {
    use millrace_nfs::mount::{
        Dirpath, ExportEntry, MntOk, MountEntry, Name, Status, decode_list, decode_mnt, encode_list,
        encode_mnt,
    };

    use super::*;

    /// Executes the target with `input`.
    pub(in crate::targets) fn run(input: &[u8]) {
        let mut input = Input::new(input);
        let kind = input.u8() % 4;
        let bytes = input.rest();
        match kind {
            0 => codec!(bytes, |d| d.get::<Dirpath<'_>>(), |v, e| e.put(&v)),
            1 => codec!(bytes, |d| decode_mnt(d), |v, e| encode_mnt(&v, e)),
            2 => codec!(bytes, |d| decode_list::<MountEntry<'_>>(d), |v, e| encode_list(&v, e)),
            _ => codec!(bytes, |d| decode_list::<ExportEntry<'_>>(d), |v, e| encode_list(&v, e)),
        }
    }

    /// Correct items of each kind.
    pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
        let with = |kind: u8, bytes: Vec<u8>| [vec![kind], bytes].concat();
        let mounts = [MountEntry { hostname: Name(b"h"), directory: Dirpath(b"/e") }];
        let exports = [
            ExportEntry { directory: Dirpath(b"/a"), groups: vec![] },
            ExportEntry { directory: Dirpath(b"/b"), groups: vec![Name(b"h1"), Name(b"h2")] },
        ];
        let root = MntOk { handle: handle(), flavors: [1, 6].into_iter().collect() };
        vec![
            with(0, encoded(|e| e.put(&Dirpath(b"/data")))),
            with(1, encoded(|e| encode_mnt(&Ok(root), e))),
            with(1, encoded(|e| encode_mnt(&Err(Status::Access), e))),
            with(2, encoded(|e| encode_list(&mounts, e))),
            with(3, encoded(|e| encode_list(&exports, e))),
        ]
    }
}
