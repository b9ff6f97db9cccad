//! A connection over TCP: PDUs between the stream and the state of the session.

use std::task::{Context, Poll};

use millrace_iscsi::stream::{Input, Output, Segment};
use millrace_iscsi::{
    pdu::{Bhs, Part},
    session::{InitiatorSession, Payload, Placement},
};
use millrace_runtime::ByteStream;

use super::{Lost, TaskData};

/// Bytes of requests above which no further request is encoded until the target receives some.
const MAX_QUEUED: usize = 1 << 20;
/// Number of PDUs that are received before others have a turn.
const MAX_PDUS: usize = 64;

/// A logged-in connection over TCP.
pub(crate) struct TcpConnection {
    stream: Box<dyn ByteStream>,
    input: Input,
    output: Output,
    pub(super) session: InitiatorSession,
    /// Where the data of the PDU that is being received belongs; `None` before the header is processed.
    place: Option<Placement>,
    /// Bytes of its data that are received.
    done: usize,
    /// Data that is passed to the session.
    control: Vec<u8>,
}

impl TcpConnection {
    pub(crate) fn new(
        stream: Box<dyn ByteStream>,
        input: Input,
        output: Output,
        session: InitiatorSession,
    ) -> Self {
        Self { stream, input, output, session, place: None, done: 0, control: Vec::new() }
    }

    /// Bytes received from the target.
    pub(super) fn received(&self) -> u64 {
        self.input.received
    }

    /// Receives and processes PDUs, a limited number of them. Returns whether there is progress.
    pub(super) fn receive(&mut self, cx: &mut Context<'_>, data: &mut dyn TaskData) -> Result<bool, Lost> {
        let (mut progress, mut pdus) = (false, 0);
        while pdus < MAX_PDUS {
            if self.place.is_none() {
                if !self.session.accepts_input() {
                    break;
                }
                if let Some(&bhs) = self.input.reader.header() {
                    self.begin(&bhs)?;
                    continue;
                }
            }
            if self.input.reader.next().0 == Part::End {
                self.session.finish(&self.control)?;
                (self.place, self.control) = (None, Vec::new());
                self.input.reader.finish();
                pdus += 1;
            } else {
                match self.poll_part(cx, data) {
                    Poll::Ready(result) => result?,
                    Poll::Pending => break,
                }
            }
            progress = true;
        }
        Ok(progress)
    }

    /// Processes a header.
    fn begin(&mut self, bhs: &Bhs) -> Result<(), Lost> {
        let place = self.session.begin(bhs, self.input.reader.ahs(), None)?;
        self.input.bulk = matches!(place, Placement::Task { .. });
        (self.place, self.done) = (Some(place), 0);
        Ok(())
    }

    /// Receives bytes of the current part into their final memory.
    fn poll_part(&mut self, cx: &mut Context<'_>, data: &mut dyn TaskData) -> Poll<Result<(), Lost>> {
        let (part, missing) = self.input.reader.next();
        let start = self.control.len();
        let to = match (part, self.place) {
            (Part::Data, Some(Placement::Task { itt, offset, length, .. })) => {
                let left = (length as usize).saturating_sub(self.done).min(missing);
                data.memory(itt, offset as usize + self.done, left).unwrap_or_default()
            }
            (Part::Data, Some(Placement::Control { .. })) => {
                // At most the data segment that this side receives.
                self.control.resize(start + missing, 0);
                &mut self.control[start..]
            }
            _ => &mut [],
        };
        let (mut one, mut none) = ([to], []);
        let to: &mut [&mut [u8]] = if one[0].is_empty() { &mut none } else { &mut one };
        let polled = self.input.poll_part(cx, &mut *self.stream, to);
        let n = match (part, &polled) {
            (Part::Data, Poll::Ready(Ok(n))) => *n,
            _ => 0,
        };
        self.done += n;
        if matches!((part, self.place), (Part::Data, Some(Placement::Control { .. }))) {
            self.control.truncate(start + n);
        }
        polled.map(|result| result.map(drop).map_err(Lost::from))
    }

    /// Encodes PDUs and writes them. Returns whether there is progress.
    pub(super) fn send(&mut self, cx: &mut Context<'_>, data: &dyn TaskData) -> Result<bool, Lost> {
        let mut progress = false;
        loop {
            let mut taken = false;
            while self.output.queued() < MAX_QUEUED
                && let Some(pdu) = self.session.poll_transmit()
            {
                let bhs = pdu.encode();
                let segment = match pdu.data {
                    Payload::Bytes(bytes) => Segment::Bytes(bytes),
                    Payload::Task { itt, offset, length } => {
                        Segment::Views(data.views(itt, offset as usize, length as usize))
                    }
                };
                self.output.push(&bhs, segment, 0);
                taken = true;
            }
            progress |= taken;
            let sent = self.output.sent();
            let flushed = self.output.poll_flush(cx, &mut *self.stream);
            // Sent bytes make room for further PDUs.
            taken |= self.output.sent() > sent;
            match flushed {
                Poll::Ready(Ok(())) if taken => {}
                Poll::Ready(Ok(())) | Poll::Pending => return Ok(progress),
                Poll::Ready(Err(e)) => return Err(e.into()),
            }
        }
    }

    /// Ends the sending direction of the stream.
    pub(super) fn shutdown(&mut self) {
        self.stream.shutdown();
    }
}
