//! Every request that reads or changes a file, against the delegations and the share reservations of another client.

use std::collections::HashSet;

use millrace_nfs::{v3, v4::*};
use millrace_nfs4_conformance::operations::{
    close, link, open_with, remove, rename, savefh, setattr, size, write,
};

use super::{
    compound::*,
    delegations::{Scene, delegreturn, v3},
    network::on_both_with,
};
use crate::common::at;

use crate::common;

const ANONYMOUS: Stateid = Stateid::ANONYMOUS;

/// What a request of another client does with the file `f`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Reads data: conflicts with a write delegation, and with an open that denies reading.
    Reads,
    /// Changes data: conflicts with each delegation, and with an open that denies writing.
    Writes,
    /// Opens the file for writing: as `Writes`, but with the status of OPEN.
    Opens,
    /// Changes attributes or names, which share reservations permit; and requests of NFSv3, which has none.
    Changes,
    /// Is refused for another reason before it conflicts.
    Refused(Status),
}

/// A request, of one operation of NFSv4 or procedure of NFSv3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    V4(Operation, &'static str),
    V3(v3::Procedure, &'static str),
}

use By::{V3, V4};
use Use::{Changes, Opens, Reads, Refused, Writes};

const REQUESTS: &[(By, Use)] = &[
    (V4(Operation::Read, ""), Reads),
    (V4(Operation::ReadPlus, ""), Reads),
    (V4(Operation::Seek, ""), Reads),
    (V4(Operation::Write, ""), Writes),
    (V4(Operation::Setattr, "size"), Writes),
    (V4(Operation::Setattr, "mode"), Changes),
    (V4(Operation::Setattr, "times"), Changes),
    (V4(Operation::Copy, ""), Writes),
    (V4(Operation::Clone, ""), Writes),
    (V4(Operation::Allocate, ""), Writes),
    (V4(Operation::Deallocate, ""), Writes),
    (V4(Operation::Setxattr, ""), Changes),
    (V4(Operation::Removexattr, ""), Changes),
    (V4(Operation::Remove, ""), Changes),
    (V4(Operation::Rename, "of"), Changes),
    (V4(Operation::Rename, "over"), Changes),
    (V4(Operation::Link, ""), Changes),
    (V4(Operation::Create, ""), Refused(Status::Exist)),
    (V4(Operation::Open, "write"), Opens),
    (V4(Operation::Open, "truncate"), Opens),
    // RFC 8881 does not say whether OPEN for reading truncates; Linux's server refuses it, too.
    (V4(Operation::Open, "read and truncate"), Refused(Status::Inval)),
    (V4(Operation::Open, "guarded"), Refused(Status::Exist)),
    (V4(Operation::Open, "exclusive"), Refused(Status::Exist)),
    (V4(Operation::Open, "exclusive with attributes"), Refused(Status::Exist)),
    (V3(v3::Procedure::Write, ""), Changes),
    (V3(v3::Procedure::Setattr, "size"), Changes),
    (V3(v3::Procedure::Setattr, "mode"), Changes),
    (V3(v3::Procedure::Setattr, "times"), Changes),
    (V3(v3::Procedure::Create, "truncate"), Changes),
    (V3(v3::Procedure::Create, "guarded"), Refused(Status::Exist)),
    (V3(v3::Procedure::Create, "exclusive"), Refused(Status::Exist)),
    (V3(v3::Procedure::Mkdir, ""), Refused(Status::Exist)),
    (V3(v3::Procedure::Symlink, ""), Refused(Status::Exist)),
    (V3(v3::Procedure::Mknod, ""), Refused(Status::Exist)),
    (V3(v3::Procedure::Remove, ""), Changes),
    (V3(v3::Procedure::Rename, "of"), Changes),
    (V3(v3::Procedure::Rename, "over"), Changes),
    (V3(v3::Procedure::Link, ""), Changes),
];

/// The operations that use no data of a file, and change neither files nor names.
fn is_harmless(operation: Operation) -> bool {
    use Operation as Op;
    matches!(
        operation,
        // Of objects, handles and attributes.
        Op::Access | Op::Getattr | Op::Getfh | Op::Lookup | Op::Lookupp | Op::Nverify | Op::Verify | Op::Putfh
            | Op::Putpubfh | Op::Putrootfh | Op::RestoreFh | Op::Savefh | Op::Readdir | Op::Readlink | Op::Secinfo
            | Op::SecinfoNoName | Op::Openattr | Op::Getxattr | Op::Listxattrs | Op::IoAdvise
            // Of state: an open of the same client, or none.
            | Op::Close | Op::Commit | Op::Delegpurge | Op::Delegreturn | Op::Lock | Op::Lockt | Op::Locku
            | Op::OpenDowngrade | Op::TestStateid | Op::FreeStateid | Op::WantDelegation
            // Of sessions and clients.
            | Op::BackchannelCtl | Op::BindConnToSession | Op::ExchangeId | Op::CreateSession | Op::DestroySession
            | Op::DestroyClientid | Op::ReclaimComplete | Op::Sequence | Op::SetSsv
            // Of minor version 0.
            | Op::OpenConfirm | Op::Renew | Op::Setclientid | Op::SetclientidConfirm | Op::ReleaseLockowner
            // Not supported, or without a file.
            | Op::GetDirDelegation | Op::Getdeviceinfo | Op::Getdevicelist | Op::Layoutcommit | Op::Layoutget
            | Op::Layoutreturn | Op::Layouterror | Op::Layoutstats | Op::CopyNotify | Op::OffloadCancel
            | Op::OffloadStatus | Op::WriteSame
    )
}

#[test]
fn every_operation_is_tested_or_uses_no_file() {
    let tested: HashSet<_> =
        REQUESTS.iter().filter_map(|(by, _)| if let V4(op, _) = by { Some(*op) } else { None }).collect();
    for operation in Operation::ALL {
        assert!(is_harmless(*operation) != tested.contains(operation), "{operation}");
    }
}

fn of_v3<T>(result: Result<T, v3::Status>) -> Status {
    match result {
        Ok(_) => Status::Ok,
        Err(v3::Status::Jukebox) => Status::Delay,
        Err(v3::Status::Exist) => Status::Exist,
        Err(other) => panic!("{other:?}"),
    }
}

fn of_res<T, F>(res: v3::Res<T, F>) -> Status {
    of_v3(res.into_result().map_err(|(status, _)| status))
}

impl Scene<'_> {
    /// Creates `f` with data and an attribute `a`, and `another` file.
    async fn populate(&self) {
        let (c, dir) = (&self.other, v3(&self.dir));
        for name in ["f", "another"] {
            let file = c.create(dir, name).await;
            c.write(file, 0, b"data", v3::StableHow::Unstable).await.unwrap();
        }
        let args = SetxattrArgs { option: SetxattrOption::Either, name: Opaque(b"a"), value: Opaque(b"1") };
        let set = [putfh(&self.dir), lookup("f"), op(Operation::Setxattr, args)];
        assert_eq!(self.others.status(c, set).await, Status::Ok);
    }

    /// The status of a request of another client.
    async fn request(&self, by: By, file: &[u8]) -> Status {
        match by {
            V4(operation, variant) => self.request_v4(operation, variant, file).await,
            V3(procedure, variant) => self.request_v3(procedure, variant, file).await,
        }
    }

    async fn request_v4(&self, operation: Operation, variant: &str, file: &[u8]) -> Status {
        use Operation as Op;
        let (c, s, dir) = (&self.other, &self.others, &self.dir);
        let range = || AllocateArgs { stateid: ANONYMOUS, offset: 0, length: 4 };
        let time = Some(SetTime::ServerTime);
        let on_file = match (operation, variant) {
            (Op::Read, _) => read(ANONYMOUS, 0, 1),
            (Op::ReadPlus, _) => op(operation, ReadPlusArgs { stateid: ANONYMOUS, offset: 0, count: 1 }),
            (Op::Seek, _) => {
                op(operation, SeekArgs { stateid: ANONYMOUS, offset: 0, what: ContentType::Hole })
            }
            (Op::Write, _) => write(c, ANONYMOUS, 0, b"x"),
            (Op::Setattr, "size") => setattr(ANONYMOUS, size(1)),
            (Op::Setattr, "mode") => {
                setattr(ANONYMOUS, Attributes { mode: Some(0o600), ..Attributes::default() })
            }
            (Op::Setattr, _) => {
                setattr(ANONYMOUS, Attributes { time_modify_set: time, ..Attributes::default() })
            }
            (Op::Allocate | Op::Deallocate, _) => op(operation, range()),
            (Op::Setxattr, _) => {
                let option = SetxattrOption::Either;
                op(operation, SetxattrArgs { option, name: Opaque(b"a"), value: Opaque(b"2") })
            }
            (Op::Removexattr, _) => named(operation, "a"),
            (Op::Copy | Op::Clone, _) => {
                let on = if operation == Op::Copy { copy_all() } else { clone_all() };
                return s.status(c, [putfh(dir), lookup("another"), savefh(), putfh(file), on]).await;
            }
            (Op::Link, _) => return s.status(c, [putfh(file), savefh(), putfh(dir), link("g")]).await,
            (Op::Remove, _) => return s.status(c, [putfh(dir), remove("f")]).await,
            (Op::Rename, "of") => return s.status(c, [putfh(dir), savefh(), rename("f", "g")]).await,
            (Op::Rename, _) => return s.status(c, [putfh(dir), savefh(), rename("another", "f")]).await,
            (Op::Create, _) => {
                return s.status(c, [putfh(dir), millrace_nfs4_conformance::operations::mkdir("f")]).await;
            }
            (Op::Open, _) => {
                let mode = Attributes { mode: Some(0o600), ..Attributes::default() };
                let how = match variant {
                    "write" => None,
                    "guarded" => Some(CreateHow::Guarded(Attributes::default())),
                    "exclusive" => Some(CreateHow::Exclusive([1; 8])),
                    "exclusive with attributes" => Some(CreateHow::Exclusive41([1; 8], mode)),
                    _ => Some(CreateHow::Unchecked(size(0))),
                };
                let access = if variant == "read and truncate" { 1 } else { 2 };
                let open = open_with(b"o", (access, 0), how, Claim::Null(Opaque(b"f")));
                return s.status(c, [putfh(dir), open]).await;
            }
            other => panic!("{other:?}"),
        };
        s.send_for_data(c, [putfh(file), on_file]).await.status
    }

    async fn request_v3(&self, procedure: v3::Procedure, variant: &str, file: &[u8]) -> Status {
        use v3::Procedure as P;
        let (c, dir) = (&self.other, v3(&self.dir));
        let sattr = match variant {
            "size" | "truncate" => v3::Sattr { size: Some(0), ..v3::Sattr::default() },
            "times" => v3::Sattr { mtime: v3::SetTime::ServerTime, ..v3::Sattr::default() },
            _ => v3::Sattr { mode: Some(0o600), ..v3::Sattr::default() },
        };
        match (procedure, variant) {
            (P::Write, _) => of_v3(c.write(v3(file), 0, b"x", v3::StableHow::Unstable).await),
            (P::Setattr, _) => {
                let args = v3::SetattrArgs { object: v3(file), attributes: sattr, guard: None };
                of_res(c.nfs::<v3::Res<v3::WccData, v3::WccData>>(procedure, &args).await)
            }
            (P::Create, _) => {
                let how = match variant {
                    "truncate" => v3::CreateHow::Unchecked(sattr),
                    "guarded" => v3::CreateHow::Guarded(sattr),
                    _ => v3::CreateHow::Exclusive([1; 8]),
                };
                of_v3(c.create_how(dir, "f", how).await)
            }
            (P::Mkdir, _) => {
                let args = v3::MkdirArgs { where_: at(dir, "f"), attributes: sattr };
                of_res(c.nfs::<v3::Res<v3::CreateOk, v3::WccData>>(procedure, &args).await)
            }
            (P::Symlink, _) => {
                let target = c.arena.copy_from(b"nowhere").unwrap().into();
                let args = v3::SymlinkArgs { where_: at(dir, "f"), attributes: sattr, target };
                of_res(c.nfs::<v3::Res<v3::CreateOk, v3::WccData>>(procedure, &args).await)
            }
            (P::Mknod, _) => {
                let args = v3::MknodArgs { where_: at(dir, "f"), what: v3::MknodWhat::Fifo(sattr) };
                of_res(c.nfs::<v3::Res<v3::CreateOk, v3::WccData>>(procedure, &args).await)
            }
            (P::Remove, _) => {
                let args = v3::RemoveArgs { object: at(dir, "f") };
                of_res(c.nfs::<v3::Res<v3::WccData, v3::WccData>>(procedure, &args).await)
            }
            (P::Rename, _) => {
                let (from, to) = if variant == "of" { ("f", "g") } else { ("another", "f") };
                let args = v3::RenameArgs { from: at(dir, from), to: at(dir, to) };
                of_res(c.nfs::<v3::Res<v3::RenameOk, v3::RenameFail>>(procedure, &args).await)
            }
            (P::Link, _) => {
                let args = v3::LinkArgs { file: v3(file), link: at(dir, "g") };
                of_res(c.nfs::<v3::Res<v3::LinkOk, v3::LinkFail>>(procedure, &args).await)
            }
            other => panic!("{other:?}"),
        }
    }
}

/// CLONE of the whole saved file.
pub(crate) fn clone_all() -> Op {
    let (source, destination) = (ANONYMOUS, ANONYMOUS);
    op(Operation::Clone, CloneArgs { source, destination, source_offset: 0, destination_offset: 0, count: 0 })
}

/// COPY of the whole saved file.
pub(crate) fn copy_all() -> Op {
    op(
        Operation::Copy,
        CopyArgs {
            source: ANONYMOUS,
            destination: ANONYMOUS,
            source_offset: 0,
            destination_offset: 0,
            count: 0,
            requirements: CopyRequirements { consecutive: true, synchronous: true },
            source_servers: List(vec![]),
        },
    )
}

/// Runs each request in a new export with these options.
fn each(options: &str, test: impl AsyncFn(&Scene<'_>, By, Use)) {
    for (by, used) in REQUESTS {
        on_both_with(&format!("8MiB,{options}"), async |network| {
            // Over RDMA there is no READ_PLUS.
            if matches!(by, V4(Operation::ReadPlus, _)) && network.proto != common::Proto::Tcp {
                return;
            }
            let s = Scene::new(network).await;
            s.populate().await;
            test(&s, *by, *used).await;
        });
    }
}

#[test]
fn every_use_by_others_waits_for_the_recall() {
    for access in [1, 3] {
        each("delegations=write", async |s, by, used| {
            let (opened, file) = s.hold("f", access).await;
            let id = opened.delegation.stateid();
            // A deny would conflict with the open, too.
            assert_eq!(s.status(&file, close(opened.stateid)).await, Status::Ok);
            let after = if let Refused(status) = used { status } else { Status::Ok };
            if after != Status::Ok || (used == Reads && access == 1) {
                assert_eq!(s.request(by, &file).await, after, "{by:?}");
                return s.assert_quiet().await;
            }
            assert_eq!(s.request(by, &file).await, Status::Delay, "{by:?}");
            s.answer_recall(id, &file, Status::Ok).await;
            assert_eq!(s.request(by, &file).await, Status::Delay, "{by:?}");
            assert_eq!(s.status(&file, delegreturn(id)).await, Status::Ok);
            assert_eq!(s.request(by, &file).await, Status::Ok, "{by:?}");
            assert_eq!(s.stats()[1..], [1, 0]);
        });
    }
}

#[test]
fn share_reservations_of_others_are_observed() {
    for deny in 1..=3 {
        each("delegations=none", async |s, by, used| {
            let open = open_with(b"o", (1, deny), None, Claim::Null(Opaque(b"f")));
            let results = s.session.send(&s.holder, [putfh(&s.dir), open, getfh()]).await;
            let stateid = results.skip(&[Operation::Putfh]).take::<OpenOk<'_>>(Operation::Open).stateid;
            let file = results.take::<GetfhOk<'_>>(Operation::Getfh).handle.to_vec();
            let (denied, after) = match used {
                Reads => (if deny & 1 != 0 { Status::Locked } else { Status::Ok }, Status::Ok),
                Writes => (if deny & 2 != 0 { Status::Locked } else { Status::Ok }, Status::Ok),
                Opens => (if deny & 2 != 0 { Status::ShareDenied } else { Status::Ok }, Status::Ok),
                Changes => (Status::Ok, Status::Ok),
                Refused(status) => (status, status),
            };
            let before = s
                .session
                .send(&s.holder, [putfh(&file), getattr(&[Attribute::Size, Attribute::Change])])
                .await;
            let before = before
                .skip(&[Operation::Putfh])
                .take::<Fattr<'_>>(Operation::Getattr)
                .decode_values()
                .unwrap();
            assert_eq!(s.request(by, &file).await, denied, "{by:?} and deny {deny}");
            if denied != Status::Ok {
                let now = s
                    .session
                    .send(&s.holder, [putfh(&file), getattr(&[Attribute::Size, Attribute::Change])])
                    .await;
                let now = now
                    .skip(&[Operation::Putfh])
                    .take::<Fattr<'_>>(Operation::Getattr)
                    .decode_values()
                    .unwrap();
                assert_eq!((now.size, now.change), (before.size, before.change), "{by:?} changed the file");
                assert_eq!(s.status(&file, close(stateid)).await, Status::Ok);
                assert_eq!(s.request(by, &file).await, after, "{by:?}");
            }
        });
    }
}
