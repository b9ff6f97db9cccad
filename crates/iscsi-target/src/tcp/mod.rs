//! iSCSI over TCP.

mod connection;
mod login;

use std::{
    future::{Future, poll_fn},
    io,
    pin::pin,
    sync::Arc,
};

use connection::Connection;
use futures::future::{Either, select};
use millrace_admission::Account;
use millrace_buffer::Arena;
use millrace_iscsi::pdu::PduReader;
use millrace_iscsi::stream::{Input, Output};
use millrace_runtime::{ByteStream, RuntimeRef};
use millrace_tls::ServerSession;

use crate::{
    config::ConnectionLimits, end::End, linger, service::Service, stats::TargetStats, table::TargetTable,
};

/// The common state of the connections of a server or shard.
#[derive(Clone)]
pub struct TcpTarget {
    /// The targets.
    pub table: Arc<TargetTable>,
    /// The executor of the shard.
    pub rt: RuntimeRef,
    /// Memory for data of writes.
    pub arena: Arena,
    /// Limits.
    pub limits: ConnectionLimits,
    /// Counters.
    pub stats: Arc<TargetStats>,
}

/// The stream of a connection with its buffers.
struct Link {
    stream: Box<dyn ByteStream>,
    input: Input,
    output: Output,
}

impl Link {
    async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.output.poll_flush(cx, &mut *self.stream)).await
    }
}

impl TcpTarget {
    /// Serves one connection, whose stream may be that of a session of TLS, until the initiator logs out or closes it, violates
    /// the protocol, is too slow or is not trusted any more, the
    /// account is evicted, or `stop` completes (then the initiator is requested to log out). Memory is charged to
    /// `account`, whose budget allows [`MAX_COMMAND_MEMORY`](crate::MAX_COMMAND_MEMORY) at once. Commands in
    /// progress at the end are always completed. The account is released before the stream is closed, which takes up to
    /// a second if the initiator does not close its end.
    pub async fn serve(
        self,
        stream: Box<dyn ByteStream>,
        tls: Option<ServerSession>,
        mut account: Account,
        stop: impl Future<Output = ()> + Send,
    ) {
        let Self { table, rt, arena, limits, stats } = self;
        let service = Service { table, rt, arena, limits, stats, tls };
        service.opened();
        let mut stop = pin!(stop);
        let reader = PduReader::new(millrace_iscsi::login::MAX_LOGIN_DATA);
        let mut link = Link { stream, input: Input::new(reader), output: Output::default() };
        let login = service.log_in(&mut link, &mut account);
        let logged_in = match select(pin!(login), &mut stop).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(End::Closed),
        };
        let end = match logged_in {
            Ok(logged_in) => {
                let mut connection = Connection::new(&service, &mut link, logged_in, account);
                let end = connection.run(stop).await;
                connection.finish().await;
                end
            }
            Err(end) => {
                drop(account);
                end
            }
        };
        service.ended(&end, link.stream.peer_addr().ok(), link.input.received, link.output.sent());
        if end.is_announced() {
            linger::close(link.stream, &service.rt, &service.table.ending_streams).await;
        }
    }
}
