//! Asking a port mapper for the MOUNT port (RFC 1833): version 2 GETPORT.

use std::sync::Arc;

use oncrpc::{Credential, PendingCall, ReplySpec, Request};
use xdr::Encoder;

use crate::connect::Target;

/// The port mapper's port.
pub(crate) const PORT: u16 = 111;
const PROGRAM: u32 = 100_000;
const VERSION: u32 = 2;
const GETPORT: u32 = 3;
const IPPROTO_TCP: u32 = 6;

/// The TCP port of MOUNT version 3, if there is a port mapper that knows it. A port mapper that is silent is given up
/// after the connect timeout.
pub(crate) async fn mount_port(portmapper: &Target) -> Option<u16> {
    let rt = Arc::clone(&portmapper.rt);
    let limit = portmapper.options.connect_timeout;
    let arena = portmapper.arena.clone();
    let target = Target {
        rt: Arc::clone(&portmapper.rt),
        arena: arena.clone(),
        host: portmapper.host.clone(),
        options: portmapper.options.clone(),
        ..*portmapper
    };
    let ask = async move {
        let connection = target.connect().await.ok()?;
        let mut e = Encoder::new(&arena, 128);
        oncrpc::call_header(&mut e, PROGRAM, VERSION, GETPORT, &Credential::None);
        for word in [nfs::mount::PROGRAM, nfs::mount::VERSION, IPPROTO_TCP, 0] {
            e.put_u32(word);
        }
        let spec = ReplySpec { max_head: nfs::v3::RPC_REPLY_HEAD + 4, payload: None };
        let request = Request::new(e.finish().ok()?, spec);
        let reply = PendingCall::new(&connection.transport, request).await;
        connection.transport.close();
        u16::try_from(reply.ok()?.results().u32().ok()?).ok().filter(|p| *p != 0)
    };
    runtime::timeout(&*rt, limit, ask).await?
}
