//! iSCSI over RDMA: iSER (RFC 7145).
//!
//! The data of reads is written to the initiator's memory by RDMA Writes from the memory of the file system. The data
//! of writes that is not immediate is fetched by RDMA Reads into its final buffers. The initiator never gets access to
//! memory of the target.
//!
//! As with Linux's initiator and target, connections use iSER from the first login PDU on (RFC 7145 section 5.1 begins
//! with TCP). `InitialR2T` is always `Yes`: an unsolicited Data-Out PDU would need a posted receive and a copy, which
//! an RDMA Read does not.

mod connection;
mod link;
mod login;
mod reads;

use std::{future::Future, pin::pin, sync::Arc};

use futures::future::{Either, select};
use millrace_admission::Account;
use millrace_buffer::Arena;
use millrace_iscsi::{
    iser::{PrivateData, max_message},
    login::MAX_LOGIN_DATA,
    negotiation::IserSettings,
};
use millrace_rdma::{ConnectParams, QueuePair, registration::Registration};
use millrace_runtime::RuntimeRef;
use millrace_tls::ServerSession;

use crate::{
    config::ConnectionLimits, end::End, login::LoggedIn, service::Service, stats::TargetStats,
    table::TargetTable,
};
use connection::Connection;
use link::Link;
use login::LoginLink;

/// Maximum data segment of a message in both directions, in bytes, as of Linux's target.
const MAX_DATA: u32 = 8192;
/// Length of the longest message, and of receives.
const MESSAGE: usize = max_message(MAX_DATA);
const _: () = assert!(MAX_LOGIN_DATA <= MAX_DATA);
/// `MaxOutstandingUnexpectedPDUs`: messages beyond the command window that the initiator may have in flight.
const UNEXPECTED: u32 = 6;
/// Receives beyond the command window and the unexpected PDUs, for an initiator that slightly exceeds them.
const RECEIVE_SLACK: u32 = 2;

/// The common state of the connections of a server or shard.
#[derive(Clone)]
pub struct IserTarget {
    /// The targets.
    pub table: Arc<TargetTable>,
    /// The executor of the shard.
    pub rt: RuntimeRef,
    /// Memory for messages and for data of writes.
    pub arena: Arena,
    /// Limits. Of `settings`, those of immediate data and bursts apply; immediate data has at most 8192 bytes. Digests
    /// are never used.
    pub limits: ConnectionLimits,
    /// Counters.
    pub stats: Arc<TargetStats>,
    /// Registration of the memory of RDMA operations, which only the local adapter accesses.
    pub registration: Arc<Registration>,
}

impl IserTarget {
    /// Adds the parameters of a target to `base`: the private data, a receive for the first login PDU, which may
    /// arrive at once, no RDMA Reads of the initiator, and no invalidation of this end's tags.
    pub fn connect_params(base: ConnectParams) -> ConnectParams {
        ConnectParams {
            ird: 0,
            private_data: PrivateData { remote_invalidate: true }.encode().to_vec(),
            remote_invalidate: false,
            first_receive: MESSAGE,
            ..base
        }
    }

    /// Serves a connection that was accepted with [`Self::connect_params`], perhaps within a session of TLS, until the initiator
    /// logs out or closes it, violates the protocol, is too slow or is not trusted any more, the account is evicted, or `stop` completes (then the initiator is asked
    /// to log out). Memory is charged to `account`, whose budget allows
    /// [`MAX_COMMAND_MEMORY`](crate::MAX_COMMAND_MEMORY) at once. Commands in progress at the end are always
    /// completed.
    pub async fn serve(
        self,
        qp: Box<dyn QueuePair>,
        tls: Option<ServerSession>,
        mut account: Account,
        stop: impl Future<Output = ()> + Send,
    ) {
        let Self { table, rt, arena, limits, stats, registration } = self;
        let service = Service { table, rt, arena, limits: with_iser(limits), stats, tls };
        service.opened();
        let mut stop = pin!(stop);
        let peer = Some(qp.info().peer);
        let mut link = Link::new(qp, &service, &registration);
        let login = log_in(&service, &mut link, &mut account);
        let logged_in = match select(pin!(login), &mut stop).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(End::Closed),
        };
        let (end, received, sent) = match logged_in {
            Ok(logged_in) => {
                let mut connection = Connection::new(&service, link, logged_in, account);
                let end = connection.run(stop).await;
                let (received, sent) = connection.transferred();
                connection.finish().await;
                (end, received, sent)
            }
            Err(end) => {
                if matches!(end, End::Refused(_)) {
                    link.close(&service.rt).await;
                }
                (end, link.received, link.sent)
            }
        };
        service.ended(&end, peer, received, sent);
    }
}

async fn log_in(service: &Service, link: &mut Link, account: &mut Account) -> Result<LoggedIn, End> {
    if link.qp.info().ord == 0 {
        return Err(End::Refused("the initiator serves no RDMA Reads: its inbound read depth is 0".into()));
    }
    let mut transport = LoginLink::new(link, account)?;
    service.log_in(&mut transport, account).await
}

/// The limits of a connection with iSER.
fn with_iser(mut limits: ConnectionLimits) -> ConnectionLimits {
    let settings = &mut limits.settings;
    settings.iser = Some(IserSettings { max_send_data: MAX_DATA, max_unexpected_pdus: UNEXPECTED });
    settings.max_receive_data = MAX_DATA;
    settings.first_burst = settings.first_burst.min(MAX_DATA);
    settings.initial_r2t = true;
    limits
}
