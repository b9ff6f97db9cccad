//! The login.

use std::future::poll_fn;

use millrace_buffer::Arena;
use millrace_iscsi::{
    iser::{Advertised, PREFIX_BYTES, PrivateData},
    login::{InitiatorConfig, InitiatorLogin, InitiatorStep, MAX_LOGIN_DATA},
    name::TargetAddress,
    negotiation::{IserSettings, Settings},
};
use millrace_rdma::{ConnectParams, QueuePair};

use crate::iser::{
    Error, InitiatorConnection,
    connection::{MAX_DATA, UNEXPECTED},
    messages::{Messages, Received},
};

/// Receives during login. A target answers one request at a time; after its last response it may send a few PDUs
/// before the receives of the session are posted.
const RECEIVES: usize = 4;
/// Maximum data segment that the initiator sends, in bytes; the target may accept less.
const MAX_SEND_DATA: u32 = 8192;

/// The result of a login.
pub enum LoggedIn {
    /// The session.
    Established(Box<InitiatorConnection>),
    /// The target is elsewhere: the caller connects there, and logs in with one redirection more.
    Redirect {
        /// The address.
        address: TargetAddress,
        /// Whether the target has moved permanently.
        permanent: bool,
    },
}

/// Adds the parameters of an initiator to `base`: an inbound read depth of at least 1, without which a target cannot
/// fetch the data of writes, an outbound read depth of 0, and the private data. `remote_invalidate`: whether the target
/// may invalidate tags ([`Provider::can_be_invalidated`](millrace_rdma::Provider::can_be_invalidated)).
pub fn connect_params(base: ConnectParams, remote_invalidate: bool) -> ConnectParams {
    ConnectParams {
        ird: base.ird.max(1),
        ord: 0,
        private_data: PrivateData { remote_invalidate }.encode().to_vec(),
        remote_invalidate,
        ..base
    }
}

/// Logs in on a queue pair that was connected with [`connect_params`]. Messages use memory of `arena`. Of the settings
/// in `config`, those of immediate data and bursts apply. The caller limits the time.
///
/// # Errors
/// The target refuses the login, violates the protocol, or the connection ends.
pub async fn log_in(
    qp: Box<dyn QueuePair>,
    arena: Arena,
    mut config: InitiatorConfig,
) -> Result<LoggedIn, Error> {
    config.settings = with_iser(config.settings);
    let mut messages = Messages::new(qp, arena, PREFIX_BYTES + MAX_LOGIN_DATA as usize);
    let (mut login, mut pdu) = InitiatorLogin::new(config);
    loop {
        messages.post_receives(RECEIVES)?;
        messages.send(Advertised::default(), &pdu.bhs, pdu.data.len(), |to| to.copy_from_slice(&pdu.data))?;
        let response = receive(&mut messages).await?;
        let received = response.pdu()?;
        match login.receive(received.bhs, received.data)? {
            InitiatorStep::Send(next) => pdu = next,
            InitiatorStep::Established(established) => {
                let connection = InitiatorConnection::new(messages, *established)?;
                return Ok(LoggedIn::Established(Box::new(connection)));
            }
            InitiatorStep::Redirect { address, permanent } => {
                return Ok(LoggedIn::Redirect { address, permanent });
            }
        }
    }
}

async fn receive(messages: &mut Messages) -> Result<Received, Error> {
    loop {
        if let Some(message) = messages.next() {
            return Ok(message);
        }
        poll_fn(|cx| messages.poll(cx)).await?;
    }
}

/// The settings of a connection with iSER.
fn with_iser(settings: Settings) -> Settings {
    let iser = IserSettings { max_send_data: MAX_SEND_DATA, max_unexpected_pdus: UNEXPECTED };
    Settings {
        max_receive_data: MAX_DATA,
        // Unsolicited Data-Out PDUs would copy data that the target can fetch.
        initial_r2t: true,
        iser: Some(iser),
        ..settings
    }
}
