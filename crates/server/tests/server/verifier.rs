//! The write verifier in the replies of WRITE and COMMIT (RFC 1813 section 3.3.7).

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use millrace_nfs::v3::{CommitArgs, CommitOk, Procedure, Res, StableHow, WccData};
use millrace_server::{Server, open};

use crate::common::{Caller, Proto, config, run};
use crate::gate::Gate;

/// A WRITE whose data was lost before its reply was built contains the verifier from before the loss, so that
/// the client detects the loss at COMMIT and writes again.
#[test]
fn a_write_reply_has_the_verifier_from_before_the_write() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        run(async {
            let server = Server::start_with(config(&["/x=memory:8MiB,squash=none"]), |export, with| {
                let mut gate = Gate::new(open(export, with)?);
                gate.instance = Some(Arc::new(AtomicU64::new(7)));
                Ok(Arc::new(gate))
            })
            .unwrap();
            let c = Caller::connect(&server, proto).await;
            let root = c.mount("/x").await.unwrap();
            let file = c.create(root, "file").await;
            // The first WRITE completes immediately, the second one later.
            for (offset, instance) in [(0, 7_u64), (3, 8)] {
                let written = c.write(file, offset, b"abc", StableHow::Unstable).await.unwrap();
                assert_eq!(written.verifier, instance.to_be_bytes(), "{proto:?}, offset {offset}");
            }
            let args = CommitArgs { file, offset: 0, count: 0 };
            let committed: Res<CommitOk, WccData> = c.nfs(Procedure::Commit, &args).await;
            assert_eq!(committed.into_result().unwrap().verifier, 9_u64.to_be_bytes(), "{proto:?}");
            drop(c);
            server.stop(Duration::from_secs(5)).await;
        });
    }
}
