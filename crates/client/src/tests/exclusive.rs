//! Exclusive creation of files with servers that set different attributes with it.

use millrace_nfs::v4::{Attribute as A, Bitmap, Operation, Status};

use super::{
    nfs4::{Fault, count, mount, on, script},
    script::{quick, run},
};

const MODE: Bitmap = Bitmap::of(&[A::Mode]);
const TIMES: Bitmap = Bitmap::of(&[A::TimeAccess, A::TimeModify]);
const SET_TIMES: Bitmap = Bitmap::of(&[A::TimeAccessSet, A::TimeModifySet]);
/// The value of `suppattr_exclcreat` of the Linux kernel's server without the attributes that the client does not set.
const USUAL: Bitmap = Bitmap::of(&[A::Size, A::Mode, A::Owner, A::OwnerGroup]);

#[test]
fn only_what_open_has_not_set_is_set_by_another_call() {
    let all = MODE.union(SET_TIMES);
    let others = Bitmap::of(&[A::Size, A::Owner, A::OwnerGroup, A::TimeMetadata, A::Fsid]);
    // What the server supports and what it names, the attributes that OPEN has, and those of SETATTR.
    for (supported, named, sent, left) in [
        (Some(USUAL), MODE, MODE, None),
        (Some(USUAL), Bitmap::EMPTY, MODE, Some(MODE)),
        (Some(USUAL), MODE.union(TIMES), MODE, Some(SET_TIMES)),
        (Some(USUAL), MODE.union(SET_TIMES), MODE, Some(SET_TIMES)),
        (Some(USUAL), MODE.with(A::TimeModify), MODE, Some(SET_TIMES)),
        (Some(USUAL), TIMES, MODE, Some(all)),
        (Some(USUAL), MODE.union(others), MODE, None),
        (Some(Bitmap::EMPTY), Bitmap::EMPTY, Bitmap::EMPTY, Some(MODE)),
        (None, Bitmap::EMPTY, Bitmap::EMPTY, Some(MODE)),
        (None, TIMES, Bitmap::EMPTY, Some(all)),
        // The mode was not asked for: it holds the verifier.
        (None, MODE.union(others), Bitmap::EMPTY, Some(MODE)),
        (Some(Bitmap::of(&[A::Size])), all, Bitmap::EMPTY, Some(all)),
    ] {
        run(async {
            let (script, server) = script(|_, _| Fault::None);
            server.lock().exclusive_attributes = supported;
            server.lock().named = named;
            let c = mount(&script, quick()).await.unwrap();
            let requests = server.lock().requests;
            c.create_new(c.root(), "new", 0o100_640).await.unwrap();
            let server = server.lock();
            let opens: Vec<Bitmap> =
                server.received.opens.iter().map(|(_, attributes)| *attributes).collect();
            assert_eq!(opens, [sent], "{supported:?} {named:?}");
            assert_eq!(server.received.set, Vec::from_iter(left), "{supported:?} {named:?}");
            assert_eq!(server.requests - requests, 1 + left.iter().len() as u32);
        });
    }
}

/// SETATTR follows the reply to OPEN, also if that is sent again to a restarted server.
#[test]
fn the_verifier_stays_until_the_reply() {
    run(async {
        let mut restarted = false;
        let (script, server) = script(move |server, ops| {
            let restarts = ops.contains(&Operation::Open) && !std::mem::replace(&mut restarted, true);
            if restarts {
                server.restart();
                return Fault::LoseBefore;
            }
            Fault::None
        });
        server.lock().exclusive_attributes = Some(USUAL);
        server.lock().named = MODE.union(TIMES);
        let c = mount(&script, quick()).await.unwrap();
        c.create_new(c.root(), "new", 0o640).await.unwrap();
        let received = &server.lock().received;
        assert!(received.opens.len() > 1, "{:?}", received.opens);
        assert!(received.opens.iter().all(|open| *open == received.opens[0]), "{:?}", received.opens);
        assert_eq!(received.set, [SET_TIMES]);
    });
}

#[test]
fn attributes_that_the_file_system_of_a_directory_refuses_are_set_afterwards() {
    for status in [Status::Inval, Status::AttrNotSupp] {
        run(async {
            let (script, server) = script(on(Operation::Open, vec![Fault::Fail(Operation::Open, status)]));
            server.lock().exclusive_attributes = Some(USUAL);
            let c = mount(&script, quick()).await.unwrap();
            c.create_new(c.root(), "new", 0o640).await.unwrap();
            assert_eq!(count(&server, Operation::Open), 1);
            let received = &server.lock().received;
            assert_eq!(received.opens.iter().map(|open| open.1).collect::<Vec<_>>(), [MODE, Bitmap::EMPTY]);
            assert_eq!(received.opens[0].0, received.opens[1].0, "the verifier");
            assert_eq!(received.set, [MODE]);
        });
    }
}

#[test]
fn a_name_that_exists_is_an_error() {
    run(async {
        let (script, server) = script(on(Operation::Open, vec![Fault::Fail(Operation::Open, Status::Exist)]));
        server.lock().exclusive_attributes = Some(USUAL);
        let c = mount(&script, quick()).await.unwrap();
        let refused = c.create_new(c.root(), "old", 0o640).await.unwrap_err();
        assert_eq!(refused.status(), Some(millrace_nfs::v3::Status::Exist));
        let received = &server.lock().received;
        assert_eq!((received.opens.len(), received.set.len()), (1, 0));
    });
}
