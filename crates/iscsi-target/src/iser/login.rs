//! The PDUs of the login phase.

use std::{future::poll_fn, task::Poll};

use millrace_admission::Account;
use millrace_buffer::slot_bytes;
use millrace_iscsi::{
    iser::{Advertised, prefix},
    login::{Established, LoginPdu},
    pdu::Bhs,
};
use millrace_rdma::ConnectionError;

use super::{MESSAGE, RECEIVE_SLACK, UNEXPECTED, link::Link};
use crate::{end::End, login::LoginTransport, reserve::Receives};

/// Receives of the login phase, which remain in the full feature phase: that of the provider, and another one.
const LOGIN_RECEIVES: usize = 2;
/// Receives beyond those of the command window.
const BEYOND_WINDOW: u32 = UNEXPECTED + RECEIVE_SLACK;

/// A connection in the login phase. A receive is posted before each response, which an initiator waits for.
pub(super) struct LoginLink<'a> {
    link: &'a mut Link,
}

impl<'a> LoginLink<'a> {
    /// Posts the receive of the first PDU. An adapter has one already, which the provider has posted
    /// ([`ConnectParams::first_receive`](millrace_rdma::ConnectParams)).
    pub(super) fn new(link: &'a mut Link, account: &mut Account) -> Result<Self, End> {
        account.take_receives_unconditionally(LOGIN_RECEIVES * slot_bytes(MESSAGE));
        link.post_receives(1)?;
        Ok(Self { link })
    }
}

impl LoginTransport for LoginLink<'_> {
    fn receives(&self) -> Receives {
        let command = slot_bytes(MESSAGE);
        Receives { fixed: (1 + BEYOND_WINDOW) as usize * command, command }
    }

    async fn receive(&mut self) -> Result<Option<(Bhs, Vec<u8>)>, End> {
        loop {
            if let Some(message) = self.link.inbox.pop_front() {
                let pdu = self.link.decode(&message)?.map(|pdu| (*pdu.bhs, pdu.data.to_vec()));
                if pdu.is_none() {
                    self.link.recycle(message)?;
                }
                return Ok(pdu);
            }
            poll_fn(|cx| match self.link.poll(cx) {
                Ok(true) => Poll::Ready(Ok(())),
                Ok(false) => Poll::Pending,
                Err(end) => Poll::Ready(Err(end)),
            })
            .await?;
        }
    }

    async fn send(&mut self, pdu: LoginPdu, established: Option<&Established>) -> Result<(), End> {
        match established {
            Some(established) => self.link.post_receives(established.window() + BEYOND_WINDOW)?,
            None => self.link.post_receives(1)?,
        }
        let message = self.link.message(&prefix(Advertised::default(), &pdu.bhs), &pdu.data);
        let message = message.map_err(|e| End::QueuePair(ConnectionError::Local(e.to_string())))?;
        self.link.post_send(message, None, 0)
    }

    fn settle(&mut self, account: &mut Account) {
        self.link.settle(account);
    }
}
