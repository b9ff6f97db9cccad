//! The export of a device: its properties for clients, and the phases of a connection.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    time::Duration,
};

use futures::future::{Either, select};
use millrace_iscsi_initiator::BlockDevice;
use millrace_runtime::{ByteStream, RuntimeRef, timeout};

use crate::{
    Options,
    connection::Connection,
    device::Device,
    error::ConnectionError,
    handshake::{Handshake, Negotiated, Next},
    input::Input,
    output::Output,
    wire::{OPTION_BYTES, greeting},
};

/// Time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// A device that clients access, on any number of connections.
#[derive(Clone)]
pub struct Export {
    device: Device,
}

impl Export {
    /// An export of `disk`, with tasks and timers of `rt`.
    pub fn new(disk: BlockDevice, rt: RuntimeRef, options: &Options) -> Self {
        Self { device: Device::new(disk, rt, options) }
    }

    /// Serves one connection until the client disconnects, or until `stop` completes; in both cases it answers the
    /// requests in progress first.
    ///
    /// # Errors
    /// The stream failed, or the client violated the protocol. The operations in progress continue.
    pub async fn serve(
        &self,
        mut stream: Box<dyn ByteStream>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), ConnectionError> {
        let mut stop = pin!(stop);
        let mut input = Input::new();
        let negotiated = {
            let handshake = pin!(self.handshake(&mut *stream, &mut input));
            let handshake = timeout(&*self.device.rt, HANDSHAKE_TIMEOUT, select(handshake, stop.as_mut()));
            match handshake.await.ok_or(ConnectionError::Silent)? {
                Either::Left((negotiated, _)) => negotiated?,
                Either::Right(_) => None,
            }
        };
        let Some(negotiated) = negotiated else { return Ok(()) };
        let mut connection = Connection::new(stream, input, self.device.clone(), negotiated);
        let mut stopped = false;
        poll_fn(|cx| {
            if !stopped && stop.as_mut().poll(cx).is_ready() {
                stopped = true;
                connection.stop();
            }
            connection.poll(cx)
        })
        .await
    }

    /// Returns what the client has negotiated; `None` if it has disconnected.
    async fn handshake(
        &self,
        stream: &mut dyn ByteStream,
        input: &mut Input,
    ) -> Result<Option<Negotiated>, ConnectionError> {
        let mut output = Output::default();
        output.push_bytes(&greeting());
        poll_fn(|cx| output.poll_flush(cx, stream)).await?;
        let mut handshake = Handshake::new(self.device.description());
        let Some(flags) = poll_fn(|cx| input.poll_take(cx, stream, false)).await? else { return Ok(None) };
        handshake.client_flags(flags)?;
        loop {
            let header = poll_fn(|cx| input.poll_take::<OPTION_BYTES>(cx, stream, false)).await?;
            let Some(header) = header else { return Ok(None) };
            let (kind, length) = handshake.option_header(&header)?;
            let mut data = Vec::with_capacity(length);
            while data.len() < length {
                poll_fn(|cx| input.poll_some(cx, stream, length - data.len())).await?;
                data.extend_from_slice(input.take(length - data.len()));
            }
            let mut reply = Vec::new();
            let next = handshake.option(kind, &data, &mut reply)?;
            output.push_bytes(&reply);
            poll_fn(|cx| output.poll_flush(cx, stream)).await?;
            match next {
                Next::Option => {}
                Next::Transmission(negotiated) => return Ok(Some(negotiated)),
                Next::End => return Ok(None),
            }
        }
    }
}
