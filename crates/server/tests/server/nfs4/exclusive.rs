//! OPEN that creates a file exclusively: the attributes that it sets, and those that hold its verifier.

use millrace_nfs::v4::*;
use millrace_nfs4_conformance::operations::{open_with, setattr};
use millrace_server::Server;

use super::compound::*;
use crate::common::{Caller, Proto, config, run, sys};

/// The attributes that identify the times after the verifier [`VERIFIER`], and the mode.
const SEEN: [Attribute; 4] = [Attribute::Size, Attribute::Mode, Attribute::TimeAccess, Attribute::TimeModify];
const TIMES: Bitmap = Bitmap::of(&[Attribute::TimeAccess, Attribute::TimeModify]);
/// A time in 1973 for each half.
const VERIFIER: [u8; 8] = [7; 8];
const YEAR_2000: i64 = 946_684_800;

fn mode_of(mode: u32) -> Attributes<'static> {
    Attributes { mode: Some(mode), ..Attributes::default() }
}

/// OPEN, and the attributes of the file: the result of OPEN and the attributes.
async fn create(
    (c, s, dir): (&Caller, &Session, &[u8]),
    name: &'static str,
    how: CreateHow<Attributes<'static>>,
) -> Result<(Bitmap, Attributes<'static>), Status> {
    let open = open_with(b"owner", (2, 0), Some(how), Claim::Null(Opaque(name.as_bytes())));
    let results = s.send(c, [putfh(dir), open, getattr(&SEEN)]).await;
    if results.status != Status::Ok {
        return Err(results.status);
    }
    let set = results.skip(&[Operation::Putfh]).take::<OpenOk<'_>>(Operation::Open).set;
    let seen = results.take::<Fattr<'_>>(Operation::Getattr).decode_values().unwrap();
    let Attributes { size, mode, time_access, time_modify, .. } = seen;
    Ok((set, Attributes { size, mode, time_access, time_modify, ..Attributes::default() }))
}

/// Runs `test` with an export that stores verifiers in the times (`true`), and one that does not.
fn both(test: impl AsyncFn((&Caller, &Session, &[u8]), bool)) {
    let dir = tempfile::tempdir().unwrap();
    let local = format!("/local=local:{},squash=none", dir.path().display());
    run(async {
        let server = Server::start(config(&["/memory=memory:64MiB,squash=none", &local])).unwrap();
        let c = Caller::connect(&server, Proto::Tcp).await;
        let s = Session::new(&c, b"client").await;
        for (path, in_times) in [("/memory", false), ("/local", true)] {
            let root = s.path(&c, path).await.unwrap();
            test((&c, &s, &root), in_times).await;
        }
    });
}

/// RFC 8881 section 18.16.3: the result names the attributes that were set, and those that hold the verifier.
#[test]
fn the_result_names_the_attributes_set_and_those_of_the_verifier() {
    let size = Attributes { size: Some(3), ..mode_of(0o444) };
    both(async |at, in_times| {
        let of_verifier = if in_times { TIMES } else { Bitmap::EMPTY };
        let mode_set = Bitmap::of(&[Attribute::Mode]);
        for (name, how, set, expected) in [
            ("a", CreateHow::Exclusive(VERIFIER), Bitmap::EMPTY, (0o600, 0)),
            ("b", CreateHow::Exclusive41(VERIFIER, Attributes::default()), Bitmap::EMPTY, (0o600, 0)),
            ("c", CreateHow::Exclusive41(VERIFIER, mode_of(0o640)), mode_set, (0o640, 0)),
            ("d", CreateHow::Exclusive41(VERIFIER, size), mode_set.with(Attribute::Size), (0o444, 3)),
        ] {
            for case in ["new", "again"] {
                let (named, seen) = create(at, name, how).await.unwrap();
                assert_eq!(named, set.union(of_verifier), "{name} {case}");
                assert_eq!((seen.mode.unwrap(), seen.size.unwrap()), expected, "{name} {case}");
                for time in [seen.time_access, seen.time_modify] {
                    assert_eq!(time.unwrap().seconds < YEAR_2000, in_times, "{name} {case}");
                }
            }
        }
        let later = Attributes { time_access_set: Some(SetTime::ServerTime), ..mode_of(0o600) };
        let refused = create(at, "e", CreateHow::Exclusive41(VERIFIER, later)).await;
        assert_eq!(refused.unwrap_err(), Status::Inval);
    });
}

/// The verifier of another user's file, which its times may show, gives no right to it.
#[test]
fn the_verifier_gives_no_right_to_a_file() {
    both(async |(c, s, dir), in_times| {
        let mode = |mode| CreateHow::Exclusive41(VERIFIER, mode_of(mode));
        let create = async |uid, name: &'static str, access, how| {
            let open = open_with(b"owner", (access, 0), Some(how), Claim::Null(Opaque(name.as_bytes())));
            s.status(&c.with(sys(uid, uid)), [putfh(dir), open]).await
        };
        assert_eq!(s.status(c, [putfh(dir), setattr(Stateid::ANONYMOUS, mode_of(0o777))]).await, Status::Ok);
        // The creator may write to a file that its mode protects against writing, also by a repetition.
        for _ in 0..2 {
            assert_eq!(create(2000, "a", 3, mode(0o444)).await, Status::Ok);
        }
        assert_eq!(create(3000, "a", 1, CreateHow::Exclusive(VERIFIER)).await, Status::Ok);
        assert_eq!(create(3000, "a", 2, CreateHow::Exclusive(VERIFIER)).await, Status::Access);
        assert_eq!(create(2000, "b", 3, CreateHow::Exclusive(VERIFIER)).await, Status::Ok);
        assert_eq!(create(3000, "b", 1, CreateHow::Exclusive(VERIFIER)).await, Status::Access, "{in_times}");
    });
}

/// A retransmission that arrives late does not undo what another client has done meanwhile.
#[test]
fn a_retransmission_keeps_later_changes() {
    both(async |at @ (c, s, dir), in_times| {
        let how = CreateHow::Exclusive41(VERIFIER, mode_of(0o640));
        create(at, "f", how).await.unwrap();
        let set = |attributes| [putfh(dir), lookup("f"), setattr(Stateid::ANONYMOUS, attributes)];
        assert_eq!(s.status(c, set(mode_of(0o600))).await, Status::Ok);
        let (_, seen) = create(at, "f", how).await.unwrap();
        assert_eq!(seen.mode, Some(0o600));
        let other = create(at, "f", CreateHow::Exclusive41([8; 8], mode_of(0o640))).await;
        assert_eq!(other.unwrap_err(), Status::Exist);
        // Where the times hold the verifier, it ends when they are set.
        let now = Some(SetTime::ServerTime);
        let times = Attributes { time_access_set: now, time_modify_set: now, ..Attributes::default() };
        assert_eq!(s.status(c, set(times)).await, Status::Ok);
        assert_eq!(create(at, "f", how).await.err(), in_times.then_some(Status::Exist));
    });
}
