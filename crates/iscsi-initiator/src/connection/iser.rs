//! A connection with iSER: the memory of a command belongs to the connection until the command ends.

use std::{
    collections::VecDeque,
    task::{Context, Poll},
};

use millrace_buffer::Arena;
use millrace_iscsi::session::{Command, InitiatorEvent, Outcome};
use millrace_rdma::Memory;

use super::{Lost, TaskData};
use crate::iser::{Event, InitiatorConnection};

/// Number of events that are processed before others have a turn.
const MAX_EVENTS: usize = 64;

/// A logged-in connection with iSER.
pub(crate) struct IserConnection {
    pub(super) inner: Box<InitiatorConnection>,
    pub(super) arena: Arena,
    pub(super) events: VecDeque<InitiatorEvent>,
    /// Number of events so far.
    received: u64,
}

impl IserConnection {
    /// `arena` has memory for commands.
    pub(crate) fn new(inner: Box<InitiatorConnection>, arena: Arena) -> Self {
        Self { inner, arena, events: VecDeque::new(), received: 0 }
    }

    /// Number of events so far.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    pub(super) fn submit(&mut self, command: Command, memory: Option<Memory>) -> Result<u32, Option<Memory>> {
        self.inner.submit(command, memory).map_err(|e| {
            tracing::debug!("{e}");
            e.memory
        })
    }

    /// Sends, receives and processes. Returns whether there is progress.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>, data: &mut dyn TaskData) -> Result<bool, Lost> {
        let before = self.received;
        while self.received - before < MAX_EVENTS as u64 {
            let Poll::Ready(event) = self.inner.poll_event(cx) else { break };
            self.received += 1;
            self.events.push_back(match event? {
                Event::Completed { itt, outcome, memory } => {
                    let complete = data.take_back(itt, memory);
                    let outcome = if complete { outcome } else { Outcome::Aborted };
                    InitiatorEvent::Completed { itt, outcome }
                }
                Event::Session(event) => event,
            });
        }
        Ok(self.received > before)
    }

    /// Ends the connection. The target can no longer access the memory that `data` takes back.
    pub(super) fn into_unfinished(self, data: &mut dyn TaskData) -> Vec<u32> {
        let take_back = |(task, memory): (millrace_iscsi::session::Unfinished, _)| {
            data.take_back(task.itt, memory);
            task.itt
        };
        self.inner.into_unfinished().into_iter().map(take_back).collect()
    }
}
