//! COPY with a scripted server: errors after which the client copies itself, and invalid replies.

use millrace_nfs::v4::{Operation, Stateid, Status};

use super::{
    nfs4::{Fault, count, mount, script},
    script::{handle, nfs3, ok, quick, run},
};
use crate::{
    Error,
    handles::{Client, File},
};

fn files(client: &Client) -> [File; 2] {
    [2, 3].map(|n| File::new(client.clone(), handle(n)))
}

async fn copy([from, to]: &[File; 2], len: u64) -> Result<u64, Error> {
    to.copy_range(to.client(), (from, 0), 0, len).await
}

#[test]
fn a_server_that_cannot_copy_is_asked_once() {
    run(async {
        for (status, attempts) in [
            (Status::NotSupp, 1),
            (Status::OpIllegal, 1),
            (Status::OffloadNoReqs, 1),
            // These depend on the files.
            (Status::XDev, 2),
            (Status::BadStateid, 2),
        ] {
            let (script, server) = script(move |_, ops| match ops.contains(&Operation::Copy) {
                true => Fault::Fail(Operation::Copy, status),
                false => Fault::None,
            });
            server.lock().size = 10;
            let files = files(&mount(&script, quick()).await.unwrap());
            let requests = server.lock().requests;
            for _ in 0..2 {
                let error = copy(&files, 10).await.unwrap_err();
                let kind = if status == Status::XDev {
                    std::io::ErrorKind::CrossesDevices
                } else {
                    std::io::ErrorKind::Unsupported
                };
                assert_eq!(error.kind(), kind, "{status:?}: {error}");
            }
            // GETATTR and COPY of each attempt.
            assert_eq!(server.lock().requests - requests, 2 * attempts, "{status:?}");
        }
    });
}

#[test]
fn a_copy_continues_after_short_replies_and_ends_with_the_source() {
    run(async {
        let (script, server) = script(|_, _| Fault::None);
        let files = files(&mount(&script, quick()).await.unwrap());
        server.lock().size = 10;
        server.lock().copy.count = 2;
        assert_eq!(copy(&files, 100).await.unwrap(), 10);
        assert_eq!(count(&server, Operation::Copy), 5);
        server.lock().copy.count = 0;
        assert_eq!(copy(&files, 10).await.unwrap(), 0);
        assert_eq!(count(&server, Operation::Copy), 6);
    });
}

#[test]
fn a_source_that_is_truncated_meanwhile_ends_the_copy() {
    run(async {
        let (script, server) = script(|server, ops| match ops.contains(&Operation::Copy) {
            true if server.size == 10 => {
                server.size = 4;
                Fault::None
            }
            true => Fault::Fail(Operation::Copy, Status::Inval),
            false => Fault::None,
        });
        server.lock().size = 10;
        server.lock().copy.count = 4;
        let files = files(&mount(&script, quick()).await.unwrap());
        assert_eq!(copy(&files, 10).await.unwrap(), 4);
        server.lock().size = 20;
        let error = copy(&files, 10).await.unwrap_err();
        assert!(matches!(error, Error::Nfs4 { status: Status::Inval, .. }), "{error}");
    });
}

#[test]
fn invalid_results_of_copy_are_errors() {
    run(async {
        let (script, server) = script(|_, _| Fault::None);
        server.lock().size = 10;
        let files = files(&mount(&script, quick()).await.unwrap());
        for (count, asynchronous, reason) in [
            (11, false, "11 bytes copied of 10"),
            (u64::MAX, false, "bytes copied of 10"),
            (10, true, "asynchronous"),
        ] {
            server.lock().copy.count = count;
            server.lock().copy.callback_id = asynchronous.then_some(Stateid::ANONYMOUS);
            let error = copy(&files, 10).await.unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
        }
    });
}

#[test]
fn invalid_ranges_are_rejected_without_a_call() {
    run(async {
        let (script, server) = script(|_, _| Fault::None);
        server.lock().size = 100;
        let [from, to] = files(&mount(&script, quick()).await.unwrap());
        for (source, start, at) in [(&from, u64::MAX, 0), (&from, 0, u64::MAX), (&to, 0, 9), (&to, 9, 0)] {
            let error = to.copy_range(to.client(), (source, start), at, 10).await.unwrap_err();
            assert!(matches!(error, Error::InvalidInput(_)), "{error}");
        }
        assert_eq!(count(&server, Operation::Copy), 0);
        let other = super::script::Script::new(|_, _| ok(0_u32)).mount_with("/e", nfs3()).await.unwrap();
        let error = to.copy_range(to.client(), (&File::new(other, handle(2)), 0), 0, 1).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::Unsupported, "another mount: {error}");
    });
}
