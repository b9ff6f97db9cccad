//! Delegations that include the times, and the arguments of OPEN that the server supports (RFC 9754).

use std::time::Duration;

use millrace_nfs::v4::*;
use millrace_nfs4_conformance::operations::{self, close, setattr, write};
use millrace_server::{Config, Server};

use super::{
    compound::*,
    delegations::{EXPORT, Granted, Scene, delegreturn, open_with, v3},
    network::{Wire, on_both_with},
};
use crate::common::{Caller, config, run, sys};

const WANT_TIMES: u32 = share_access::BOTH | share_access::WANT_DELEG_TIMESTAMPS;
/// What others receive.
const TIMES: [Attribute; 5] = [
    Attribute::Change,
    Attribute::Size,
    Attribute::TimeAccess,
    Attribute::TimeMetadata,
    Attribute::TimeModify,
];

/// `time` later by some seconds.
fn after(time: NfsTime, seconds: i64) -> NfsTime {
    NfsTime { seconds: time.seconds + seconds, ..time }
}

/// The attributes that a holder reports, with `unsaved` changes.
fn held(granted: &Attributes<'_>, unsaved: u64, access: NfsTime, modify: NfsTime) -> Attributes<'static> {
    Attributes {
        change: granted.change.map(|change| change + unsaved),
        size: Some(5),
        time_deleg_access: Some(access),
        time_deleg_modify: Some(modify),
        ..Attributes::default()
    }
}

fn modified(time: NfsTime) -> Attributes<'static> {
    Attributes { time_deleg_modify: Some(time), ..Attributes::default() }
}

/// SETATTR of the time of modification under a delegation.
fn set_modified(stateid: Stateid, time: NfsTime) -> Op {
    setattr(stateid, modified(time))
}

async fn times_of(c: &Caller, s: &Session, file: &[u8]) -> Attributes<'static> {
    let results = s.send(c, [putfh(file), getattr(&TIMES)]).await;
    let values: Attributes<'_> = results.skip(&[Operation::Putfh]).take(Operation::Getattr);
    let Attributes { change, size, time_access, time_metadata, time_modify, .. } = values;
    Attributes { change, size, time_access, time_metadata, time_modify, ..Attributes::default() }
}

/// The attributes that another client receives while the holder answers CB_GETATTR with `held`.
async fn seen(
    wire: &Wire,
    (c, s): (&Caller, &Session),
    file: &[u8],
    held: &Attributes<'static>,
) -> Attributes<'static> {
    let answering = async {
        let called = wire.callback().await;
        let args: CbGetattrArgs<'_> = called.args();
        let expected = Attributes::DELEGATED_TIMES.with(Attribute::Change).with(Attribute::Size);
        assert_eq!((called.operation, args.requested), (CallbackOperation::Getattr, expected));
        wire.answer_attributes(&called, held);
    };
    futures::join!(times_of(c, s, file), answering).0
}

impl Scene<'_> {
    /// The holder opens `name`, and gets the times with it.
    async fn hold_times(&self, name: &'static str) -> (Stateid, Stateid, Vec<u8>) {
        let (opened, file) = self.hold(name, WANT_TIMES).await;
        let Granted::WriteAttrs(id) = opened.delegation else { panic!("{opened:?}") };
        (id, opened.stateid, file)
    }

    async fn seen(&self, file: &[u8], held: &Attributes<'static>) -> Attributes<'static> {
        seen(&self.wire, (&self.other, &self.others), file, held).await
    }
}

/// `open_arguments4` as the bytes that a client of Linux decodes.
#[test]
fn minor_version_2_has_the_arguments_of_open() {
    on_both_with(EXPORT, async |network| {
        let s = Scene::new(network).await;
        let words = [1, 0b1110, 1, 0b1111, 1, 1 << 20 | 0b11_1000, 1, 0b11_0111, 1, 0b1111_u32];
        let expected: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let new = Attributes::DELEGATED_TIMES.with(Attribute::OpenArguments);
        let root = s.session.path(&s.holder, "/").await.unwrap();
        for (at, minor_version) in [(&root, 2), (&s.dir, 2), (&root, 1), (&s.dir, 1)] {
            let get = |attribute| getattr(&[attribute]);
            let ops = [
                sequence(s.session.sequence(false)),
                putfh(at),
                get(Attribute::SupportedAttrs),
                get(Attribute::OpenArguments),
            ];
            let results = send(&s.holder, minor_version, &ops).await;
            let _: SequenceOk = results.take(Operation::Sequence);
            let supported: Attributes<'_> = results.skip(&[Operation::Putfh]).take(Operation::Getattr);
            let open_arguments: Fattr<'_> = results.take(Operation::Getattr);
            let supported = supported.supported_attrs.unwrap().intersection(new);
            let (attributes, values) =
                if minor_version == 2 { (new, &expected[..]) } else { (Bitmap::EMPTY, &[][..]) };
            assert_eq!((supported, open_arguments.values), (attributes, values), "{minor_version}");
        }
        // The times of a delegation cannot be read, or set with a new file.
        let (_, _, file) = s.hold_times("f").await;
        let last = async |minor, on: Op| s.session.last(&s.holder, minor, &file, on).await.1;
        let time = || modified(NfsTime::default());
        let verify = || op(Operation::Verify, time());
        let set = || set_modified(Stateid::ANONYMOUS, NfsTime::default());
        let cases: [(&dyn Fn() -> Op, _, _); 3] = [
            (&|| getattr(&[Attribute::TimeDelegModify]), Status::Inval, Status::Ok),
            (&verify, Status::Inval, Status::AttrNotSupp),
            (&set, Status::BadStateid, Status::AttrNotSupp),
        ];
        for (on, in_minor_2, in_minor_1) in cases {
            assert_eq!((last(2, on()).await, last(1, on()).await), (in_minor_2, in_minor_1));
        }
        let create = |how| operations::open_with(b"o", (3, 0), Some(how), Claim::Null(Opaque(b"new")));
        let what = CreateType::Fifo;
        let fifo = CreateArgs { what, name: Opaque(b"new"), attributes: time() };
        for on in [
            create(CreateHow::Guarded(time())),
            create(CreateHow::Unchecked(time())),
            create(CreateHow::Exclusive41([1; 8], time())),
            op(Operation::Create, fifo),
        ] {
            assert_eq!(s.status(&s.dir, on).await, Status::Inval);
        }
    });
}

#[test]
fn a_client_that_wants_the_times_gets_them_with_a_write_delegation() {
    on_both_with(EXPORT, async |network| {
        let s = Scene::new(network).await;
        s.hold_times("f").await;
        let hold = async |name: &'static str, access| {
            s.hold(name, access | share_access::WANT_DELEG_TIMESTAMPS).await.0.delegation
        };
        let read = hold("read", share_access::READ).await;
        assert!(matches!(read, Granted::Read(_)), "{read:?}");
        let any = hold("any", 2 | share_access::WANT_ANY_DELEG).await;
        assert!(matches!(any, Granted::WriteAttrs(_)), "{any:?}");
        let none = hold("no", 3 | share_access::WANT_NO_DELEG).await;
        assert!(matches!(none, Granted::Refused(_)), "{none:?}");
        let ops = [
            sequence(s.session.sequence(false)),
            putfh(&s.dir),
            open_with(WANT_TIMES, Claim::Null(Opaque(b"minor")), true),
        ];
        let results = send(&s.holder, 1, &ops).await;
        let _: SequenceOk = results.take(Operation::Sequence);
        let opened: OpenOk<'_> = results.skip(&[Operation::Putfh]).take(Operation::Open);
        assert!(matches!(opened.delegation, Delegation::Write(_)), "{opened:?}");
    });
}

#[test]
fn others_see_the_times_of_the_holder() {
    on_both_with(EXPORT, async |network| {
        let s = Scene::new(network).await;
        let (_, _, file) = s.hold_times("f").await;
        let own = times_of(&s.holder, &s.session, &file).await;
        let (access, modify) = (own.time_access.unwrap(), own.time_modify.unwrap());
        network.sleep(Duration::from_secs(10)).await;
        let invalid = NfsTime { nanoseconds: 1_000_000_000, ..after(modify, 1) };
        let silent =
            Attributes { time_deleg_access: None, time_deleg_modify: None, ..held(&own, 0, access, modify) };
        for report in [
            held(&own, 0, access, modify),
            held(&own, 0, after(access, -5), after(modify, -5)),
            held(&own, 0, NfsTime { seconds: i64::MIN, nanoseconds: u32::MAX }, invalid),
            silent,
        ] {
            assert_eq!(s.seen(&file, &report).await, own, "{report:?}");
        }
        let read = Attributes { time_access: Some(after(access, 2)), ..own };
        assert_eq!(s.seen(&file, &held(&own, 0, after(access, 2), modify)).await, read, "not a change");

        // A modification is a change, once.
        let report = held(&own, 0, access, after(modify, 3));
        let first = s.seen(&file, &report).await;
        assert_eq!((first.time_modify, first.size), (Some(after(modify, 3)), own.size));
        assert!(first.change > own.change && first.time_metadata >= first.time_modify, "{first:?}");
        assert_eq!(s.seen(&file, &report).await, first);
        let unsaved = s.seen(&file, &held(&own, 1, access, after(modify, 4))).await;
        assert_eq!((unsaved.time_modify, unsaved.size), (Some(after(modify, 4)), Some(5)));
        assert!(unsaved.change > first.change, "{unsaved:?}");

        // A clock that is ahead: not later than the time of the server.
        let future = NfsTime { seconds: i64::MAX, nanoseconds: 999_999_999 };
        let late = s.seen(&file, &held(&own, 1, future, future)).await;
        let now = i64::try_from(network.rt.wall_clock().as_secs()).unwrap();
        for time in [late.time_access, late.time_modify] {
            assert!(time.is_some_and(|time| time > after(modify, 4) && time.seconds <= now), "{late:?}");
        }
        let answering = async {
            let called = s.wire.callback().await;
            s.wire.answer_attributes(&called, &held(&own, 1, access, after(modify, 5)));
        };
        let (of_v3, ()) = futures::join!(s.other.getattr(v3(&file)), answering);
        assert_eq!(of_v3.unwrap().mtime.seconds, after(modify, 5).seconds);
    });
}

#[test]
fn the_holder_sets_the_times_until_it_returns_the_delegation() {
    on_both_with(EXPORT, async |network| {
        let s = Scene::new(network).await;
        let (id, open, file) = s.hold_times("f").await;
        let (plain, other) = (s.hold("g", 3).await.0.delegation.stateid(), s.hold_times("h").await.2);
        let own = times_of(&s.holder, &s.session, &file).await;
        let (access, modify) = (own.time_access.unwrap(), own.time_modify.unwrap());
        network.sleep(Duration::from_secs(10)).await;
        // The data is written later than the program has modified it.
        assert_eq!(s.status(&file, write(&s.holder, id, 0, &[1; 5])).await, Status::Ok);
        let refused = times_of(&s.holder, &s.session, &file).await;
        for stateid in [Stateid::ANONYMOUS, Stateid::READ_BYPASS, open, plain] {
            assert_eq!(s.status(&file, set_modified(stateid, after(modify, 4))).await, Status::BadStateid);
        }
        assert_eq!(s.status(&other, set_modified(id, after(modify, 4))).await, Status::BadStateid);
        let stolen = s.others.status(&s.other, [putfh(&file), set_modified(id, after(modify, 4))]).await;
        assert_eq!(stolen, Status::BadStateid);
        // A user who may not write the file.
        let user = Caller { cred: sys(1000, 1000), ..s.wire.caller() };
        let on_behalf = async |at| s.session.status(&user, [putfh(&file), set_modified(id, at)]).await;
        assert_eq!(on_behalf(after(modify, 4)).await, Status::Access);
        // Times of access alone, and times before the grant.
        let accessed = Attributes { time_deleg_access: Some(after(access, 1)), ..Attributes::default() };
        assert_eq!(s.status(&file, setattr(id, accessed)).await, Status::Ok);
        assert_eq!(s.status(&file, set_modified(id, after(modify, -1))).await, Status::Ok);
        assert_eq!(times_of(&s.holder, &s.session, &file).await, refused);

        let both = Attributes { time_deleg_access: Some(after(access, 1)), ..modified(after(modify, 4)) };
        assert_eq!(s.status(&file, setattr(id, both)).await, Status::Ok);
        let set = times_of(&s.holder, &s.session, &file).await;
        assert_eq!((set.time_access, set.time_modify), (Some(after(access, 1)), Some(after(modify, 4))));
        assert!(set.change > refused.change);
        assert_eq!(s.status(&file, setattr(id, both)).await, Status::Ok);
        assert_eq!(times_of(&s.holder, &s.session, &file).await, set, "no change");
        let writable = Attributes { mode: Some(0o666), ..modified(after(modify, 5)) };
        assert_eq!(s.status(&file, setattr(id, writable)).await, Status::Ok);
        assert_eq!(on_behalf(after(modify, 6)).await, Status::Ok, "a member of the group may have opened it");
        let own = times_of(&s.holder, &s.session, &file).await;
        assert_eq!(own.time_modify, Some(after(modify, 6)));
        let future = NfsTime { seconds: i64::MAX, nanoseconds: 0 };
        assert_eq!(s.status(&file, set_modified(id, future)).await, Status::Ok);
        let own = times_of(&s.holder, &s.session, &file).await;
        let now = i64::try_from(network.rt.wall_clock().as_secs()).unwrap();
        assert!(
            own.time_modify.is_some_and(|time| time.seconds <= now && time > after(modify, 6)),
            "{own:?}"
        );

        let last = [putfh(&file), set_modified(id, after(modify, 7)), delegreturn(id)];
        assert_eq!(s.session.status(&s.holder, last).await, Status::Ok);
        let own = times_of(&s.holder, &s.session, &file).await;
        assert_eq!(own.time_modify, Some(after(modify, 7)));
        assert_eq!(times_of(&s.other, &s.others, &file).await, own, "no callback");
        assert_eq!(s.status(&file, set_modified(id, after(modify, 8))).await, Status::BadStateid);
        s.assert_quiet().await;
    });
}

/// A file system whose attribute `change` is the time of change, and a restart of the server.
#[test]
fn times_of_files_of_a_local_file_system_are_delegated() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["files", "state"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    let export = format!("/x=local:{},squash=none,delegations=write", dir.path().join("files").display());
    let config = Config { state_dir: Some(dir.path().join("state")), ..config(&[&export]) };
    run(async {
        let server = Server::start(config.clone()).unwrap();
        let connect = async |server: &millrace_server::Running| Wire::tcp(server.tcp_addr().unwrap()).await;
        let (wire, other) = (connect(&server).await, connect(&server).await.caller());
        let c = wire.caller();
        let (s, others) = (Session::new(&c, b"holder").await, Session::new(&other, b"other").await);
        let at = s.path(&c, "x").await.unwrap();
        let claim = Claim::Null(Opaque(b"f"));
        let (opened, file) = Scene::open_in(&c, &s, &at, WANT_TIMES, claim, true).await.unwrap();
        let Granted::WriteAttrs(id) = opened.delegation else { panic!("{opened:?}") };
        let own = times_of(&c, &s, &file).await;
        let (access, modify) = (own.time_access.unwrap(), own.time_modify.unwrap());
        let seen = async |held| seen(&wire, (&other, &others), &file, &held).await;
        assert_eq!(seen(held(&own, 0, access, modify)).await, own);
        let future = after(modify, 1_000);
        let first = seen(held(&own, 0, access, future)).await;
        let mtime = first.time_modify.unwrap();
        assert!(mtime > modify && mtime < future && first.change > own.change, "{first:?}");
        assert!(first.time_metadata >= first.time_modify, "{first:?}");
        let again = seen(held(&own, 0, access, mtime)).await;
        assert_eq!(again, first);
        let unsaved = seen(held(&own, 1, access, mtime)).await;
        assert_eq!((unsaved.time_modify, unsaved.size), (Some(mtime), Some(5)));
        assert!(unsaved.change > first.change);

        assert_eq!(s.status(&c, [putfh(&file), write(&c, id, 0, &[1; 5])]).await, Status::Ok);
        let of_others = seen(held(&own, 0, access, mtime)).await;
        assert_eq!(of_others.time_modify, Some(mtime), "that of the holder, not of the WRITE");
        let written = times_of(&c, &s, &file).await;
        let accessed = Attributes { time_deleg_access: Some(future), ..Attributes::default() };
        assert_eq!(s.status(&c, [putfh(&file), setattr(id, accessed)]).await, Status::Ok);
        assert_eq!(times_of(&c, &s, &file).await, written, "an access is no change");
        assert_eq!(s.status(&c, [putfh(&file), set_modified(id, mtime)]).await, Status::Ok);
        assert_eq!(times_of(&c, &s, &file).await.time_modify, Some(mtime));

        drop(server);
        let server = Server::start(config).unwrap();
        let wire = connect(&server).await;
        let c = wire.caller();
        let s = Session::start(&c, b"holder").await;
        let claim = Claim::Previous(DelegationType::WriteAttrs);
        let (reclaimed, _) = Scene::open_in(&c, &s, &file, 3, claim, false).await.unwrap();
        let Granted::WriteAttrs(id) = reclaimed.delegation else { panic!("{reclaimed:?}") };
        assert_eq!(s.status(&c, [putfh(&file), close(reclaimed.stateid), delegreturn(id)]).await, Status::Ok);
    });
}
