//! Requests one after another, before commands run concurrently.

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use millrace_buffer::{Views, copy};
use millrace_iscsi::{
    pdu::TaskAttribute,
    session::{Command, Direction, InitiatorEvent},
};
use millrace_rdma::Memory;
use millrace_runtime::{RuntimeExt, RuntimeRef, timeout};
use millrace_scsi::{CDB_LEN, Lun};

use crate::{
    Error,
    connection::{CLOSE_LIMIT, Connection, Lost, TaskData},
    error::Failure,
    outcome::{Verdict, is_reset, judge},
};

/// Maximum number of executions of one command without a delay.
pub(crate) const MAX_ATTEMPTS: u32 = 32;
/// Time after which a command is sent again that the target could not execute.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The data of the only task.
struct Single(Vec<u8>);

impl TaskData for Single {
    fn memory(&mut self, _: u32, offset: usize, length: usize) -> Option<&mut [u8]> {
        self.0.get_mut(offset..offset + length)
    }

    fn views(&self, _: u32, _: usize, _: usize) -> Views {
        Views::new()
    }

    fn take_back(&mut self, _: u32, memory: Option<Memory>) -> bool {
        match memory {
            Some(Memory::Owned(buffer)) => copy(&mut self.0, &buffer),
            _ => return self.0.is_empty(),
        }
        true
    }
}

/// A connection with one request at a time.
pub(crate) struct Exchange {
    pub(crate) connection: Connection,
    rt: RuntimeRef,
    portal: String,
    /// Whether a unit attention condition reported a reset, or a deferred error the failure of a write.
    pub(crate) reset: bool,
}

impl Exchange {
    pub(crate) fn new(connection: Connection, rt: RuntimeRef, portal: String) -> Self {
        Self { connection, rt, portal, reset: false }
    }

    /// Executes a command that receives up to `expected` bytes, and returns them. Unit attention conditions are
    /// consumed.
    ///
    /// # Errors
    /// The connection is lost, or the command fails (the inner error).
    pub(crate) async fn execute(
        &mut self,
        lun: Lun,
        cdb: [u8; CDB_LEN],
        expected: u32,
    ) -> Result<Result<Vec<u8>, Failure>, Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let failure = match self.once(lun, cdb, expected).await? {
                (Verdict::Done(n), mut data) => {
                    data.truncate(n as usize);
                    return Ok(Ok(data));
                }
                (Verdict::Failed(failure), _) => return Ok(Err(failure)),
                (Verdict::Attention(sense), _) => {
                    self.reset |= is_reset(sense.additional);
                    Failure::Sense(sense)
                }
                (Verdict::Deferred(sense), _) => {
                    self.reset = true;
                    Failure::Sense(sense)
                }
                (Verdict::Again(failure), _) => failure,
                (Verdict::Later(failure), _) => {
                    self.rt.sleep(RETRY_DELAY).await;
                    failure
                }
            };
            if attempts >= MAX_ATTEMPTS {
                return Ok(Err(failure));
            }
        }
    }

    async fn once(
        &mut self,
        lun: Lun,
        cdb: [u8; CDB_LEN],
        expected: u32,
    ) -> Result<(Verdict, Vec<u8>), Error> {
        let direction = if expected > 0 { Direction::Read } else { Direction::None };
        let lun = u64::from_be_bytes(lun.to_bytes());
        let command = Command { lun, attribute: TaskAttribute::SIMPLE, cdb, direction, expected };
        let arena = self.connection.arena().filter(|_| expected > 0);
        let memory = arena.map(|arena| arena.alloc(expected as usize)).transpose()?.map(Memory::Owned);
        let submitted = self.connection.submit(command, memory);
        submitted.map_err(|_| self.failed(&"the session accepts no command"))?;
        let mut data = Single(vec![0; expected as usize]);
        let outcome = self.wait(&mut data, |event| match event {
            InitiatorEvent::Completed { outcome, .. } => Some(outcome),
            _ => None,
        });
        Ok((judge(outcome.await?), data.0))
    }

    /// Sends a text request, and returns the text of the answer.
    ///
    /// # Errors
    /// The connection is lost, or the target rejects the request.
    pub(crate) async fn text(&mut self, text: Vec<u8>) -> Result<Vec<u8>, Error> {
        self.connection.send_text(text).map_err(|e| self.failed(&e))?;
        let mut none = Single(Vec::new());
        let answer = self.wait(&mut none, |event| match event {
            InitiatorEvent::Text { text, .. } => Some(Ok(text)),
            InitiatorEvent::RequestRejected { reason, .. } => Some(Err(reason)),
            _ => None,
        });
        let answer = answer.await?;
        answer.map_err(|reason| self.failed(&format!("the target rejected the request: {reason}")))
    }

    /// Logs out. Errors are those of a connection that ends anyway.
    pub(crate) async fn log_out(mut self) {
        if self.connection.logout().is_ok() {
            let out = |event| matches!(event, InitiatorEvent::LoggedOut { .. }).then_some(());
            let _ended = self.wait(&mut Single(Vec::new()), out).await;
            self.connection.shutdown();
            let rt = self.rt.clone();
            let mut none = Single(Vec::new());
            let closed = self.wait(&mut none, |_| None::<()>);
            timeout(&*rt, CLOSE_LIMIT, closed).await;
        }
    }

    /// Serves the connection until `select` takes an event.
    async fn wait<T>(
        &mut self,
        data: &mut Single,
        mut select: impl FnMut(InitiatorEvent) -> Option<T>,
    ) -> Result<T, Error> {
        let connection = &mut self.connection;
        let result = poll_fn(|cx| poll_event(connection, cx, data, &mut select)).await;
        result.map_err(|lost| self.failed(&lost))
    }

    fn failed(&self, reason: &dyn std::fmt::Display) -> Error {
        Error::Lost { portal: self.portal.clone(), reason: reason.to_string() }
    }
}

fn poll_event<T>(
    connection: &mut Connection,
    cx: &mut Context<'_>,
    data: &mut Single,
    select: &mut dyn FnMut(InitiatorEvent) -> Option<T>,
) -> Poll<Result<T, Lost>> {
    loop {
        let mut progress = connection.send(cx, data)?;
        progress |= connection.receive(cx, data)?;
        while let Some(event) = connection.next_event() {
            let ended = match event {
                InitiatorEvent::Dropped { time2wait } => Some(time2wait),
                _ => None,
            };
            if let Some(found) = select(event) {
                return Poll::Ready(Ok(found));
            }
            if let Some(seconds) = ended {
                return Poll::Ready(Err(Lost::Ended(seconds)));
            }
        }
        if !progress {
            return Poll::Pending;
        }
    }
}
