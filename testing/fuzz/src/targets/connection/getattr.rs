//! A server that receives GETATTR calls for one handle after the other, on one connection.

use std::{cell::RefCell, time::Duration};

use millrace_client::Proto;
use millrace_nfs::v3::{self, FileHandle, Procedure, Status};

use super::{
    calls::call,
    scene::{Kind, Scene, TCP, server},
    wire::{Wire, record, take_record},
};

/// A server and a connection to it.
pub(in crate::targets) struct GetattrServer {
    wire: RefCell<Wire>,
    root: FileHandle,
    scene: Scene,
}

/// Bytes of the header of a successful reply with an AUTH_NONE verifier.
const REPLY_HEADER: usize = millrace_oncrpc::SUCCESS_HEADER_BYTES;

impl GetattrServer {
    pub(in crate::targets) fn new() -> Self {
        let scene = Scene::new(Kind { read_only: false, proto: Proto::Tcp });
        let (net, rt) = (&scene.net, &scene.rt);
        let set_up = scene.time.block_on(async {
            let client = net.mount(rt, 1, Proto::Tcp, "/data").await.expect("a mount");
            (
                FileHandle::new(client.root().as_bytes()).expect("a handle of NFSv3"),
                Wire::connect(rt, &net.host(1), server(TCP)).await,
            )
        });
        let (root, wire) = set_up.expect("a connection");
        Self { wire: RefCell::new(wire), root, scene }
    }

    /// The handle of the export's root.
    pub(in crate::targets) fn root(&self) -> &[u8] {
        self.root.as_bytes()
    }

    /// Checks that GETATTR succeeds with the handle of the root, and with no other.
    pub(in crate::targets) fn check_handle(&self, bytes: &[u8]) {
        let Some(object) = FileHandle::new(bytes) else { return };
        let getattr = (v3::PROGRAM, v3::VERSION, Procedure::Getattr.number());
        let call = record(&call(9, getattr, &v3::GetattrArgs { object }));
        let mut wire = self.wire.borrow_mut();
        let reply = self.scene.time.block_on(async {
            assert!(wire.write(&call).await, "the server takes the call");
            let mut reply = Vec::new();
            loop {
                let more = wire.read(Duration::from_secs(1)).await.expect("the connection is open");
                assert!(!more.is_empty(), "the server replies");
                reply.extend(more);
                if let Some(record) = take_record(&mut reply) {
                    return record;
                }
            }
        });
        let reply = reply.expect("the call ends");
        let status = reply.get(REPLY_HEADER..).and_then(|r| r.first_chunk()).map(|s| u32::from_be_bytes(*s));
        let status = Status::try_from(status.expect("a status")).expect("a status of NFS");
        let expected: &[Status] =
            if object == self.root { &[Status::Ok] } else { &[Status::BadHandle, Status::Stale] };
        assert!(expected.contains(&status), "{status:?}");
    }
}
