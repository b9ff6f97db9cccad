//! Extended attributes of a scripted server.

use millrace_nfs::v4::{Operation as Op, SetxattrOption, Status};

use super::{
    nfs4::{Fault, count, mount, on, script},
    script::{quick, run},
};
use crate::Error;

#[test]
fn a_list_without_an_end_is_an_error() {
    run(async {
        let (script, _) = script(|_, _| Fault::None);
        let c = mount(&script, quick()).await.unwrap();
        let error = c.list_xattrs(c.root()).await.unwrap_err();
        assert!(matches!(error, Error::BadReply { procedure: "LISTXATTRS", .. }), "{error}");
    });
}

/// The server has executed the call, and no longer has its reply.
#[test]
fn a_repeated_change_is_no_error() {
    run(async {
        let repeated = |operation, status| {
            script(on(
                operation,
                vec![Fault::Fail(operation, Status::RetryUncachedRep), Fault::Fail(operation, status)],
            ))
        };
        let (removing, server) = repeated(Op::Removexattr, Status::NoXattr);
        let c = mount(&removing, quick()).await.unwrap();
        c.remove_xattr(c.root(), "k").await.unwrap();
        assert_eq!(count(&server, Op::Removexattr), 0, "both calls failed");
        let (setting, _) = repeated(Op::Setxattr, Status::Exist);
        let c = mount(&setting, quick()).await.unwrap();
        c.set_xattr(c.root(), "k", b"v", SetxattrOption::Create).await.unwrap();
        let (other, _) = repeated(Op::Setxattr, Status::Exist);
        let c = mount(&other, quick()).await.unwrap();
        let error = c.set_xattr(c.root(), "k", b"of another", SetxattrOption::Create).await.unwrap_err();
        assert!(matches!(error, Error::Xattr { status: Status::Exist, .. }), "{error}");
    });
}

#[test]
fn a_server_without_extended_attributes_is_reported() {
    run(async {
        let (script, _) = script(on(Op::Getxattr, vec![Fault::Fail(Op::Getxattr, Status::NotSupp)]));
        let c = mount(&script, quick()).await.unwrap();
        assert!(!c.has_xattrs(), "the server does not report xattr_support");
        let error = c.xattr(c.root(), "k").await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
        assert!(error.to_string().ends_with("the server has no extended attributes for it"), "{error}");
    });
}
