//! The task that owns the connection of a device: commands, their outcomes, and reconnects.
//!
//! The handles of a `BlockDevice` submit operations to it (`submission`). `Engine` divides operations into
//! commands (`pieces`), repeats them in a new session after the connection was lost, and counts `Losses` of
//! unstable data.

mod durability;
mod live;
mod operations;
mod pieces;
mod submission;
mod work;

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::FutureExt;
use millrace_iscsi::session::InitiatorEvent;
use millrace_runtime::{BoxFuture, RuntimeExt, Sleep, timeout};
use millrace_scsi::Lun;

use crate::{
    Error, Options,
    connection::{Connection, Lost},
    exchange::Exchange,
    login::Dialer,
    unit::{UnitInfo, identify},
};
use durability::Durability;
pub(crate) use durability::Losses;
use live::Live;
use operations::Operations;
pub(crate) use pieces::Pieces;
use submission::Reply;
pub(crate) use submission::{Outcome, Receiver, Request, Submissions};
pub(crate) use work::Work;

/// Delays before attempts to reconnect after the first one, which is immediate: the shortest and the longest.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(5);
/// Rounds of work before other tasks of the executor have a turn.
const MAX_ROUNDS: usize = 16;

/// The logical unit that a device accesses.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) lun: Lun,
    /// The URL as text.
    pub(crate) url: String,
    pub(crate) connect_timeout: Duration,
    /// Whether a login was successful after which the device was not identified: unit attention conditions may be lost.
    pub(crate) incomplete: Arc<AtomicBool>,
}

/// A connection to an identified logical unit.
pub(crate) struct Connected {
    connection: Connection,
    pub(crate) unit: UnitInfo,
    /// Whether the device reported a reset, or may have.
    reset: bool,
}

impl Place {
    /// Connects, logs in and identifies the logical unit.
    pub(crate) async fn connect(&self) -> Result<Connected, Error> {
        let Self { dialer, lun, url, connect_timeout, incomplete } = self;
        let portal = || dialer.portal();
        let work = async {
            let connection = dialer.connect().await?;
            let mut exchange = Exchange::new(connection, dialer.rt.clone(), portal());
            let missed = incomplete.swap(true, Ordering::Relaxed);
            match identify(&mut exchange, *lun).await? {
                Ok(unit) => {
                    incomplete.store(false, Ordering::Relaxed);
                    let reset = exchange.reset || missed;
                    Ok(Connected { connection: exchange.connection, unit, reset })
                }
                Err(reason) => {
                    exchange.log_out().await;
                    Err(Error::Unit { url: url.clone(), reason })
                }
            }
        };
        timeout(&*dialer.rt, *connect_timeout, work).await.unwrap_or_else(|| {
            let reason = format!("no answer for {connect_timeout:?}");
            Err(Error::Connect { portal: portal(), reason, source: None })
        })
    }
}

/// The state of the connection.
enum Link {
    Live(Box<Live>),
    Connecting(BoxFuture<'static, Result<Connected, Error>>),
    /// The next attempt to connect waits.
    Waiting(Sleep),
    /// The URL leads to another device, with this identity.
    Replaced(String),
    /// No connection is necessary any more.
    Closed,
}

/// The task of a device.
pub(crate) struct Engine {
    place: Place,
    timeout: Duration,
    ping_interval: Duration,
    queue_depth: usize,
    submissions: Receiver,
    /// The capacity, for the handles.
    capacity: Arc<AtomicU64>,
    unit: UnitInfo,
    operations: Operations,
    durability: Durability,
    link: Link,
    /// Connections and attempts since the last command that was completed.
    failures: u32,
    /// The last event of the connection.
    last: String,
    /// Runs until the earliest deadline.
    deadline: Option<Sleep>,
    /// Runs until commands are sent again that the target could not execute.
    pause: Option<Sleep>,
    closing: bool,
    closed: Vec<Reply>,
}

impl Engine {
    pub(crate) fn new(
        place: Place,
        options: &Options,
        connected: Connected,
        submissions: Receiver,
        (capacity, losses): (Arc<AtomicU64>, Arc<Losses>),
    ) -> Self {
        Self {
            place,
            timeout: options.timeout,
            ping_interval: options.ping_interval,
            queue_depth: options.queue_depth.max(1),
            submissions,
            capacity,
            unit: connected.unit,
            operations: Operations::default(),
            durability: Durability::new(losses),
            link: Link::Live(Box::new(Live::new(connected.connection))),
            failures: 0,
            last: "the target did not answer".into(),
            deadline: None,
            pause: None,
            closing: false,
            closed: Vec::new(),
        }
    }

    /// Takes the requests of the handles. Returns whether there were some.
    fn take_requests(&mut self) -> bool {
        let mut progress = false;
        let released = self.submissions.is_released();
        for (request, reply) in self.submissions.take() {
            progress = true;
            match request {
                // The operation fails, as the reply is dropped.
                Request::Work(_) if self.closing => {}
                Request::Work(work) => {
                    let deadline = self.place.dialer.rt.now() + self.timeout;
                    self.operations.add(work, reply, deadline, self.durability.requested());
                }
                Request::Close => {
                    self.closed.push(reply);
                    self.closing = true;
                }
            }
        }
        progress |= released && !self.closing;
        self.closing |= released;
        progress
    }

    /// Fails operations whose deadline has passed. Returns whether there is progress.
    fn expire(&mut self, cx: &mut Context<'_>) -> bool {
        let rt = &self.place.dialer.rt;
        if self.deadline.is_none() {
            self.deadline = self.operations.earliest().map(|at| rt.sleep_until(at));
        }
        let Some(deadline) = &mut self.deadline else { return false };
        if deadline.poll_unpin(cx).is_pending() {
            return false;
        }
        self.deadline = None;
        let (expired, busy) = self.operations.expired(self.place.dialer.rt.now());
        // The target still has commands with data of these operations: only a new session aborts them.
        if busy {
            self.lost(&Lost::Silent);
        }
        for key in expired {
            let (url, last) = (self.place.url.clone(), self.last.clone());
            self.operations.abandon(key, Error::TimedOut { url, after: self.timeout, last });
        }
        true
    }

    /// Works on the connection. Returns whether there is progress.
    fn poll_link(&mut self, cx: &mut Context<'_>) -> bool {
        match &mut self.link {
            Link::Live(_) => match self.serve(cx) {
                Ok(progress) => progress,
                Err(lost) => {
                    self.lost(&lost);
                    true
                }
            },
            Link::Connecting(attempt) => match attempt.poll_unpin(cx) {
                Poll::Ready(Ok(connected)) => {
                    self.connected(connected);
                    true
                }
                Poll::Ready(Err(e)) => {
                    self.disconnected(e.to_string(), Duration::ZERO);
                    true
                }
                Poll::Pending => false,
            },
            Link::Waiting(sleep) => match sleep.poll_unpin(cx) {
                Poll::Ready(()) => {
                    let place = self.place.clone();
                    self.link = Link::Connecting(Box::pin(async move { place.connect().await }));
                    true
                }
                Poll::Pending => false,
            },
            Link::Replaced(found) => {
                let found = found.clone();
                for key in self.operations.keys() {
                    let expected = self.unit.identity.to_string();
                    let error =
                        Error::Replaced { url: self.place.url.clone(), expected, found: found.clone() };
                    self.operations.abandon(key, error);
                }
                false
            }
            Link::Closed => false,
        }
    }

    /// The connection has ended. Commands without an outcome are sent again in another session, whose login makes the
    /// target end the tasks of this one.
    fn lost(&mut self, why: &Lost) {
        // Commands whose outcome arrived before the connection ended are complete.
        while let Link::Live(live) = &mut self.link
            && let Some(event) = live.connection.next_event()
        {
            if let InitiatorEvent::Completed { itt, outcome } = event {
                self.completed(itt, outcome);
            }
        }
        if let Link::Live(live) = std::mem::replace(&mut self.link, Link::Closed) {
            let unfinished = live.connection.into_unfinished(&mut self.operations);
            self.operations.requeue(unfinished.into_iter());
        }
        let wait = match why {
            Lost::Ended(seconds) => Duration::from_secs((*seconds).into()),
            _ => Duration::ZERO,
        };
        self.disconnected(why.to_string(), wait);
    }

    fn disconnected(&mut self, why: String, wait: Duration) {
        if self.closing && self.operations.is_empty() {
            self.link = Link::Closed;
            return;
        }
        let delay = match self.failures {
            0 => Duration::ZERO,
            n => (FIRST_DELAY * 2_u32.saturating_pow((n - 1).min(16))).min(MAX_DELAY),
        };
        match self.failures {
            0 => tracing::warn!("{}: {why}; reconnecting", self.place.url),
            _ => tracing::debug!("{}: {why}; reconnecting", self.place.url),
        }
        self.last = why;
        self.failures = self.failures.saturating_add(1);
        self.link = Link::Waiting(self.place.dialer.rt.sleep(delay.max(wait.min(MAX_DELAY))));
    }

    /// There is a new connection.
    fn connected(&mut self, connected: Connected) {
        let Connected { connection, unit, reset } = connected;
        let same = self.unit.identity.is_same_device(&unit.identity);
        if !same || self.unit.block_size != unit.block_size {
            let found = format!("{} with blocks of {} bytes", unit.identity, unit.block_size);
            tracing::error!("{}: this is now another device: {found}", self.place.url);
            self.link = Link::Replaced(found);
            return;
        }
        if reset {
            self.reset();
        }
        self.capacity.store(unit.capacity, Ordering::Relaxed);
        tracing::info!("{}: reconnected", self.place.url);
        self.unit = unit;
        self.link = Link::Live(Box::new(Live::new(connection)));
    }

    /// The device was reset.
    fn reset(&mut self) {
        if self.durability.reset() {
            tracing::error!(
                "{}: the device was reset, or failed, before completed writes were durable",
                self.place.url
            );
        }
    }

    /// Whether the task has nothing left to do.
    fn is_finished(&self) -> bool {
        let idle = self.closing && self.operations.is_empty();
        idle && !matches!(self.link, Link::Live(_))
    }
}

/// Completes when the device is closed, or all handles are dropped, and no operation is left.
impl Future for Engine {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.submissions.register(cx);
        for _ in 0..MAX_ROUNDS {
            let mut progress = self.take_requests();
            progress |= self.expire(cx);
            progress |= self.poll_link(cx);
            if self.is_finished() {
                return Poll::Ready(());
            }
            if !progress {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
