//! The full feature phase of a connection.

use std::{
    future::{Future, poll_fn},
    ops::Range,
    pin::pin,
    task::{Context, Poll, ready},
};

use millrace_admission::Account;
use millrace_buffer::{Buffer, copied};
use millrace_iscsi::{
    iser::{Advertised, PrivateData, RemoteBuffer, prefix},
    session::{Payload, Placement, TargetPdu, TargetTransmit},
};
use millrace_rdma::{Segment, SteeringTag};
use millrace_runtime::{RuntimeExt, Sleep};

use super::{
    MAX_DATA,
    link::{CLOSE_LIMIT, Link},
    reads::Reads,
};
use crate::{
    end::End,
    full_feature::{FullFeature, RdmaRead, Transport, Unplaced},
    login::LoggedIn,
    service::Service,
    stats::add,
    task::{CHUNK, State},
    timers::Traffic,
};

/// Maximum bytes of an RDMA operation.
const MAX_LENGTH: usize = 1 << 20;

/// A message whose header was processed, and whose data has no place yet.
struct Arriving {
    message: Buffer,
    data: Range<usize>,
    place: Placement,
    /// Memory that is needed first.
    unplaced: Option<Unplaced>,
}

/// One connection, owned by one task. The queue pair is dropped before the memory of its work.
pub(super) struct Connection<'a> {
    link: Link,
    reads: Reads,
    core: FullFeature<'a>,
    arriving: Option<Arriving>,
    /// A PDU for which the arena has no memory.
    deferred: Option<TargetPdu>,
    /// Maximum bytes of an RDMA Write.
    max_length: usize,
    /// The reason for the end of the session, which closes after its last PDUs.
    violation: Option<End>,
    /// Why the connection ends, and the time limit for the peer to close its end.
    closing: Option<(End, Sleep)>,
}

impl<'a> Connection<'a> {
    pub(super) fn new(service: &'a Service, link: Link, mut logged_in: LoggedIn, account: Account) -> Self {
        let (info, caps) = (link.qp.info(), link.qp.capabilities());
        let remote_invalidate =
            caps.send_with_invalidate && PrivateData::decode(&info.private_data).remote_invalidate;
        let (chunk, max_length) = (CHUNK.min(caps.max_transfer), MAX_LENGTH.min(caps.max_transfer));
        let local = Some(info.local);
        let transport = Transport { local, chunk, remote_invalidate, divides_batches: false };
        // A discovery session does not negotiate the receives of the initiator.
        let parameters = &mut logged_in.established.parameters;
        parameters.max_send_data = parameters.max_send_data.min(MAX_DATA);
        parameters.max_receive_data = parameters.max_receive_data.min(MAX_DATA);
        let core = FullFeature::new(service, logged_in, account, &transport);
        Self {
            link,
            reads: Reads::new(max_length),
            core,
            arriving: None,
            deferred: None,
            max_length,
            violation: None,
            closing: None,
        }
    }

    /// Bytes received and sent.
    pub(super) fn transferred(&self) -> (u64, u64) {
        (self.link.received, self.link.sent)
    }

    /// Serves the connection to its end.
    pub(super) async fn run(&mut self, stop: impl Future<Output = ()> + Send) -> End {
        let mut stop = pin!(stop);
        poll_fn(|cx| match self.core.poll_order(cx, stop.as_mut()) {
            Poll::Ready(end) => Poll::Ready(end),
            Poll::Pending => self.poll(cx),
        })
        .await
    }

    /// Processes available work; ready at the end of the connection.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.core.begin_turn(cx);
        loop {
            let progress = match self.step(cx) {
                Ok(progress) => progress,
                Err(end) => return Poll::Ready(self.closing.take().map_or(end, |(end, _)| end)),
            };
            if self.core.turn.is_over() {
                self.link.qp.flush(cx);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if progress {
                continue;
            }
            if let Some((_, limit)) = &mut self.closing {
                ready!(limit.as_mut().poll(cx));
                return Poll::Ready(self.closing.take().map_or(End::Closed, |(end, _)| end));
            }
            let traffic = Traffic {
                received: self.link.received,
                sent: self.link.sent,
                unsent: self.link.unsent() > 0,
                awaits_data: self.reads.in_flight() > 0,
            };
            if let Some(end) = ready!(self.core.poll_timers(cx, &traffic)) {
                return Poll::Ready(end);
            }
        }
    }

    /// Returns whether there is progress.
    fn step(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let before = self.link.received + self.link.sent;
        let mut progress = self.link.poll(cx)?;
        let moved = self.link.received + self.link.sent - before;
        self.core.turn.received(usize::try_from(moved).unwrap_or(usize::MAX));
        self.link.settle(&mut self.core.account);
        for (id, sink) in self.link.reads.drain(..) {
            if let Some((itt, data)) = self.reads.completed(id, sink) {
                self.core.rdma_reads_ended(itt, data);
            }
        }
        if self.closing.is_some() {
            self.link.inbox.clear();
            return Ok(progress);
        }
        progress |= self.receive(cx)?;
        progress |= self.core.run_commands(cx);
        progress |= self.post_reads()?;
        progress |= self.send(cx)?;
        self.link.settle(&mut self.core.account);
        Ok(progress)
    }

    /// Processes received messages. Returns whether there is progress.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut progress = false;
        while self.violation.is_none() && !self.core.turn.is_over() {
            if self.arriving.is_none() {
                if !self.core.session.accepts_input() {
                    break;
                }
                let Some(message) = self.link.inbox.pop_front() else { break };
                self.begin(message)?;
            }
            if !self.finish_pdu(cx)? {
                break;
            }
            progress = true;
        }
        Ok(progress)
    }

    /// Processes the header of a message.
    fn begin(&mut self, message: Buffer) -> Result<(), End> {
        let Some(pdu) = self.link.decode(&message)? else { return self.link.recycle(message) };
        let start = millrace_iscsi::iser::PREFIX_BYTES + pdu.ahs.len();
        let data = start..start + pdu.data.len();
        match self.core.begin(pdu.bhs, pdu.ahs, pdu.advertised) {
            Ok(begun) => {
                let (place, unplaced) = (begun.place, begun.unplaced);
                self.arriving = Some(Arriving { message, data, place, unplaced });
            }
            Err(violation) => self.violation = Some(End::Violation(violation)),
        }
        Ok(())
    }

    /// Places the data of the message, and posts its receive again. Returns whether there was memory.
    fn finish_pdu(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let Some(arriving) = &mut self.arriving else { return Ok(true) };
        if let Some(unplaced) = arriving.unplaced {
            if self.core.poll_place(cx, unplaced, self.link.unsent() > 0).is_pending() {
                return Ok(false);
            }
            arriving.unplaced = None;
        }
        let Some(Arriving { message, data, place, .. }) = self.arriving.take() else { return Ok(true) };
        let data = &message[data];
        let control = match place {
            Placement::Control { .. } => data,
            Placement::Task { itt, offset, length, .. } => {
                if let Some(task) = self.core.tasks.get_mut(&itt) {
                    let mut rest = data;
                    for slice in task.data_out.slices(offset as usize, length as usize) {
                        let (now, later) = rest.split_at(slice.len().min(rest.len()));
                        copied::copy(&mut slice[..now.len()], now);
                        rest = later;
                    }
                }
                &[]
            }
            Placement::None | Placement::Discard { .. } => &[],
        };
        if let Err(violation) = self.core.finish_pdu(control) {
            self.violation = Some(End::Violation(violation));
        }
        self.link.recycle(message)?;
        Ok(true)
    }

    /// Posts RDMA Reads, of which the initiator serves a limited number at a time. Returns whether one was posted.
    fn post_reads(&mut self) -> Result<bool, End> {
        let mut progress = false;
        if let Some(itt) = self.reads.current()
            && self.core.tasks.get(&itt).is_none_or(|task| task.state == State::Aborted)
            && self.reads.cancel()
        {
            self.core.rdma_reads_ended(itt, []);
        }
        let ord = usize::from(self.link.qp.info().ord);
        while self.reads.in_flight() < ord {
            if let Some(read) = self.reads.next() {
                let id = read.id;
                let registration = self.link.post_read(read)?;
                self.reads.hold(id, registration);
                progress = true;
                continue;
            }
            let Some(RdmaRead { itt, source, offset }) = self.core.rdma_reads.pop_front() else { break };
            if let Some(task) = self.core.tasks.get_mut(&itt) {
                task.reading = true;
                let sinks = task.data_out.split_off(offset as usize);
                self.reads.begin(itt, source, sinks); // At least one: only missing data is read.
            }
        }
        Ok(progress)
    }

    /// Posts PDUs and RDMA Writes. Returns whether there is progress.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut progress = false;
        while self.deferred.is_some() || self.link.unsent() < self.core.service.limits.max_queued {
            let pdu = match self.deferred.take() {
                Some(pdu) if self.core.memory.poll(cx).is_pending() => {
                    self.deferred = Some(pdu);
                    break;
                }
                Some(pdu) => pdu,
                None => match self.core.session.poll_transmit() {
                    Some(TargetTransmit::Pdu(pdu)) => pdu,
                    Some(TargetTransmit::RdmaWrite { itt, sink, offset, length }) => {
                        self.write(itt, sink, offset, length)?;
                        continue;
                    }
                    Some(TargetTransmit::Close) => {
                        self.close();
                        return Ok(true);
                    }
                    None => break,
                },
            };
            progress |= self.push(pdu)?;
        }
        Ok(progress)
    }

    fn write(&mut self, itt: u32, sink: RemoteBuffer, offset: u32, length: u32) -> Result<(), End> {
        add(&self.core.service.stats.read_bytes, length.into());
        let data = self.core.data_in(itt, offset, length);
        let to = Segment { handle: SteeringTag(sink.stag), length, offset: sink.base };
        self.link.post_writes(&data, to, self.max_length)
    }

    /// Posts a PDU. Returns whether there was memory for it.
    fn push(&mut self, pdu: TargetPdu) -> Result<bool, End> {
        let data = match &pdu.data {
            Payload::Bytes(bytes) => bytes.as_slice(),
            // A session with iSER has no Data-In PDUs.
            Payload::Task { .. } => &[],
        };
        let message = match self.link.message(&prefix(Advertised::default(), &pdu.encode()), data) {
            Ok(message) => message,
            Err(e) => {
                self.core.wait_for_memory(&e);
                self.deferred = Some(pdu);
                return Ok(false);
            }
        };
        let ended = pdu.ends.and_then(|itt| self.core.tasks.remove(&itt));
        self.core.settle_held();
        self.link.post_send(message, pdu.invalidate, ended.map_or(0, |task| task.charge))?;
        Ok(true)
    }

    /// Ends the connection after all that was posted. After a logout the initiator closes it: Linux's siw reports an
    /// error to an initiator that closes a connection later than its peer.
    fn close(&mut self) {
        if self.violation.is_some() {
            self.link.qp.disconnect();
        }
        let end = self.violation.take().unwrap_or(End::Closed);
        self.closing = Some((end, self.core.service.rt.sleep(CLOSE_LIMIT)));
    }

    /// Drops the queue pair, completes the commands that the device executes, and ends the nexus and the session.
    pub(super) async fn finish(self) {
        let Self { link, reads, core, .. } = self;
        drop(link);
        drop(reads);
        core.finish().await;
    }
}
