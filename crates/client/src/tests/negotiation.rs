//! The choice of the version of NFS.

use std::sync::{Arc, atomic::Ordering};

use millrace_nfs::v4::{Operation, Status};

use super::{
    nfs4::{self, Fault, count, on},
    script::{Script, fail, quick, run},
};
use crate::{Error, Options, Version, handles::Client};

async fn mount(script: &Arc<Script>, path: &str) -> Result<Client, Error> {
    script.mount_with(path, Options { retry: quick(), ..Options::default() }).await
}

#[test]
fn a_server_with_nfsv4_2_is_mounted_with_it() {
    run(async {
        let (script, _) = nfs4::script(|_, _| Fault::None);
        let c = mount(&script, "/").await.unwrap();
        assert_eq!((c.version(), c.export()), (Version::V4_2, "/"));
    });
}

#[test]
fn a_server_without_nfsv4_is_mounted_with_nfsv3() {
    run(async {
        let script = Script::new(|_, _| fail(millrace_nfs::v3::Status::Io));
        script.v4.store(false, Ordering::Relaxed);
        let c = mount(&script, "/e/sub").await.unwrap();
        assert_eq!((c.version(), c.export(), c.path_in_export()), (Version::V3, "/e", &b"sub"[..]));
        for version in [Version::V4_1, Version::V4_2] {
            let options = Options { retry: quick(), ..Options::default() }.vers(Some(version));
            let e = script.mount_with("/e", options).await.unwrap_err();
            assert!(matches!(e, Error::UnsupportedVersion { version: v, .. } if v == version), "{e}");
        }
        let e = mount(&script, "/other").await.unwrap_err();
        assert!(matches!(e, Error::UnknownExport { .. }), "{e}");
    });
}

#[test]
fn a_server_without_the_minor_version_is_mounted_with_the_next_one() {
    run(async {
        let (script, _) =
            nfs4::script(on(Operation::ExchangeId, vec![Fault::Reject(Status::MinorVersMismatch)]));
        assert_eq!(mount(&script, "/").await.unwrap().version(), Version::V4_1);
    });
}

/// The root of NFSv4 does not exist, as of Linux servers whose root file system cannot be exported.
#[test]
fn nfsv3_is_used_if_nothing_is_exported_with_nfsv4() {
    run(async {
        let (script, server) =
            nfs4::script(on(Operation::Putrootfh, vec![Fault::Fail(Operation::Putrootfh, Status::NoEnt); 8]));
        let c = mount(&script, "/e").await.unwrap();
        assert_eq!((c.version(), c.export()), (Version::V3, "/e"));
        for operation in [Operation::DestroySession, Operation::DestroyClientid] {
            assert_eq!(count(&server, operation), 1, "{operation}");
        }
        // The error is that of NFSv3, which names the exports.
        let e = mount(&script, "/other").await.unwrap_err();
        assert!(matches!(&e, Error::UnknownExport { exports, .. } if exports == &["/e"]), "{e}");
    });
}

#[test]
fn nfsv3_is_used_if_only_it_has_the_path() {
    run(async {
        let faults = vec![Fault::Fail(Operation::Lookup, Status::NoEnt); 8];
        let (script, server) = nfs4::script(on(Operation::Lookup, faults));
        let c = mount(&script, "/e/sub").await.unwrap();
        assert_eq!((c.version(), c.export(), c.path_in_export()), (Version::V3, "/e", &b"sub"[..]));
        assert_eq!(count(&server, Operation::DestroyClientid), 1);
        // Both lack it, so that it may be a new name in the root.
        let c = mount(&script, "/new").await.unwrap();
        assert_eq!((c.version(), c.export(), c.path_in_export()), (Version::V4_2, "/", &b"new"[..]));
    });
}

/// An answer of the server that has another reason does not lead to another version.
#[test]
fn other_failures_do_not_change_the_version() {
    run(async {
        let faults = vec![Fault::Fail(Operation::ExchangeId, Status::ServerFault); 8];
        let (script, _) = nfs4::script(on(Operation::ExchangeId, faults));
        let e = mount(&script, "/e").await.unwrap_err();
        assert!(matches!(e, Error::Nfs4 { operation: Operation::ExchangeId, .. }), "{e}");
    });
}
