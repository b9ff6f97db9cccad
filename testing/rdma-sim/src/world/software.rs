//! The software of an end: posting and polling, and their cost for the host.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use millrace_buffer::Buffer;
use millrace_rdma::{
    Completion, ConnectionError, Counters, PostError, ReadRequest, SendRequest, WriteRequest,
};

use super::{Inner, Net};
use crate::{
    end::{Message, State},
    event::{EndId, Event},
    host::Host,
};

/// Time limit in nanoseconds for posted work at the end of a connection.
const LINGER: u64 = 1_000_000_000;

/// An operation for which an end's software is charged.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Charge {
    /// Registration of this number of bytes.
    Register(usize),
    /// Deregistration of this number of bytes.
    Deregister(usize),
    /// Binding of a window to this number of bytes.
    Bind(usize),
    /// Invalidation of this number of windows.
    Unbind(usize),
    /// Copy of this number of bytes.
    Copy(usize),
}

/// Work posted by an end's owner.
pub(crate) enum Posted {
    Receive(Buffer),
    Send(SendRequest),
    Write(WriteRequest),
    Read(ReadRequest),
}

impl Inner {
    /// Charges the owner of `id` and its host; later work of the owner waits.
    pub(crate) fn charge(&self, id: EndId, what: Charge) {
        let now = self.now();
        let mut net = self.net.lock();
        let Some(end) = net.end(id) else { return };
        let (host, from) = (end.host, now.max(end.software_free));
        let p = Arc::clone(&net.hosts[host].profile);
        let (r, pages) = (&p.registration, |bytes| p.pages(bytes));
        let (cpu, table) = match what {
            Charge::Register(b) => (r.register_ns + pages(b) * r.register_page_ns, r.table_ns),
            Charge::Deregister(b) => (r.deregister_ns + pages(b) * r.deregister_page_ns, r.table_ns),
            Charge::Bind(b) => (r.bind_ns + pages(b) * r.bind_page_ns, 0),
            Charge::Unbind(n) => (r.unbind_ns * n as u64, 0),
            Charge::Copy(_) => (0, 0),
        };
        let registers = |h: &mut Host, at| {
            let worked = h.work(at, cpu);
            h.change_table(worked, table)
        };
        let serial = match what {
            Charge::Register(_) | Charge::Bind(_) => p.kernel.serial_registrations,
            Charge::Deregister(_) | Charge::Unbind(_) => p.kernel.serial_deregistrations,
            Charge::Copy(_) => false,
        };
        let done = match what {
            Charge::Copy(bytes) => net.hosts[host].copy(now, from, 0, bytes as u64),
            _ if serial => net.hosts[host].under_lock(from, registers),
            _ => registers(&mut net.hosts[host], from),
        };
        let used = &mut net.hosts[host].used;
        match what {
            Charge::Register(_) => {
                used.registrations += 1;
                used.registering_ns += done - from;
            }
            Charge::Bind(_) => {
                used.binds += 1;
                used.registering_ns += done - from;
            }
            Charge::Deregister(_) | Charge::Unbind(_) => used.deregistering_ns += done - from,
            Charge::Copy(_) => {}
        }
        if let Some(end) = net.end(id) {
            end.software_free = done;
        }
    }

    pub(crate) fn post(self: &Arc<Self>, id: EndId, posted: Posted) -> Result<(), PostError> {
        let mut net = self.net.lock();
        let net = &mut *net;
        let end = net.end(id).filter(|e| matches!(e.state, State::Open)).ok_or(PostError::Closed)?;
        let message = match posted {
            Posted::Receive(buffer) => {
                end.receives.push_back(buffer);
                self.handle_inbound(net, id);
                return Ok(());
            }
            Posted::Send(r) => {
                end.counters.sends += 1;
                Message::Send { data: r.data, invalidate: r.invalidate, signaled: r.signaled }
            }
            Posted::Write(r) => {
                end.counters.writes += 1;
                Message::Write(r)
            }
            Posted::Read(r) => {
                end.counters.reads += 1;
                if end.reads_in_flight >= end.ord {
                    end.waiting_reads.push_back(r);
                    return Ok(());
                }
                end.reads_in_flight += 1;
                Message::Read(r)
            }
        };
        self.ring_doorbell(net, id, message);
        Ok(())
    }

    /// Rings the doorbell for a work request, when the software has finished earlier work.
    pub(super) fn ring_doorbell(self: &Arc<Self>, net: &mut Net, id: EndId, message: Message) {
        let now = self.now();
        let Some(end) = net.end(id) else { return };
        let number = end.insert(message);
        end.posted.push_back(number);
        let (host, from) = (end.host, now.max(end.software_free));
        let cost = net.hosts[host].profile.host.post_ns;
        let rings = net.hosts[host].work(from, cost);
        if let Some(end) = net.end(id) {
            end.software_free = rings;
        }
        self.schedule(rings, Event::TakeUp(id));
    }

    pub(crate) fn poll(
        &self,
        id: EndId,
        cx: &mut Context<'_>,
        out: &mut Vec<Completion>,
    ) -> Poll<Result<(), ConnectionError>> {
        let mut net = self.net.lock();
        let Some(end) = net.end(id) else { return Poll::Ready(Err(ConnectionError::Closed)) };
        if !end.completions.is_empty() {
            out.extend(end.completions.drain(..));
            return Poll::Ready(Ok(()));
        }
        if let State::Down(error) = &end.state {
            return Poll::Ready(Err(error.clone()));
        }
        end.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(crate) fn disconnect(self: &Arc<Self>, id: EndId) {
        let mut net = self.net.lock();
        let Some(end) = net.end(id).filter(|e| matches!(e.state, State::Open)) else { return };
        end.state = State::Disconnecting;
        self.ring_doorbell(&mut net, id, Message::Fin);
        self.schedule(self.now() + LINGER, Event::Lingered(id));
    }

    pub(crate) fn counters(&self, id: EndId) -> Counters {
        self.net.lock().end(id).map(|e| e.counters).unwrap_or_default()
    }

    /// Handles the drop of a queue pair.
    pub(crate) fn dropped(self: &Arc<Self>, id: EndId) {
        let mut net = self.net.lock();
        let Some(end) = net.end(id) else { return };
        end.dropped = true;
        end.completions.clear();
        if matches!(end.state, State::Disconnecting) {
            return; // Posted work is still sent.
        }
        if end.is_alive() {
            self.notify_peer(id, ConnectionError::Closed);
        }
        end.release();
        end.state = State::Down(ConnectionError::Closed);
        self.remove_if_over(&mut net, id);
    }

    /// Completes work: the host processes the completion, which costs processor time.
    pub(super) fn complete(self: &Arc<Self>, net: &mut Net, me: EndId, completion: Completion) {
        self.complete_with_copy(net, me, completion, 0);
    }

    /// As [`Self::complete`], with a copy of `bytes` bytes.
    pub(super) fn complete_with_copy(
        self: &Arc<Self>,
        net: &mut Net,
        me: EndId,
        completion: Completion,
        bytes: u64,
    ) {
        let now = self.now();
        let Net { connections, hosts, .. } = net;
        let Some(end) = connections.get_mut(&me.0).map(|c| &mut c.ends[me.1]) else { return };
        let model = &hosts[end.host].profile.host;
        let idle = end.pending.is_empty() && end.completions.is_empty();
        let mut cost = model.completion_ns;
        if idle {
            cost += model.interrupt_ns;
        }
        if matches!(completion, Completion::Received { .. }) {
            cost += model.message_ns;
        }
        // Completions of one connection are processed in order.
        let (host, from) = (end.host, now.max(end.visible_at));
        end.pending.push_back(completion);
        end.visible_at = hosts[host].copy(now, from, cost, bytes);
        let at = end.visible_at;
        self.schedule(at, Event::Visible(me));
    }
}
