//! The processing of TCP segments: sending, receiving, reset.

use std::{io, sync::Arc};

use super::{
    end::End,
    event::{Event, Segment},
};
use crate::{
    event::{self, EndId, PS, peer},
    host::Incoming,
    world::{Inner, Net, egress::TURN_PACKETS},
};

impl Inner {
    pub(crate) fn handle_tcp_event(self: &Arc<Self>, net: &mut Net, event: Event) {
        match event {
            Event::Made(id) => self.made(net, id),
            Event::Launch(id) => self.launch_segment(net, id),
            Event::Head { to, segment, head_ps, tail_ps, uplinks } => {
                let [Some(source), Some(host)] = [peer(to), to].map(|id| net.tcp.end(id).map(|e| e.host))
                else {
                    return;
                };
                let bytes = segment.bytes.len() as u64;
                let wire = net.hosts[source].profile.segment_wire_bytes(bytes);
                if let Some((head_ps, tail_ps)) =
                    net.pass_uplink((source, host), uplinks, wire, (head_ps, tail_ps))
                {
                    let event = Event::Head { to, segment, head_ps, tail_ps, uplinks: uplinks + 1 };
                    return self.tcp(head_ps.div_ceil(PS), event);
                }
                let port_ps = net.hosts[host].profile.segment_ps(bytes);
                let then = Some(event::Event::Tcp(Event::Arrive { to, segment }));
                self.enter(net, host, Incoming { bytes, port_ps, head_ps, tail_ps, then });
            }
            Event::Arrive { to, segment } => self.arrived(net, to, segment),
            Event::Interrupt(host, queue) => {
                let first = net.hosts[host].profile.host.interrupt_ns;
                self.take(net, host, queue, first);
            }
            Event::Taken { to, segment, host, queue } => {
                self.taken(net, to, segment);
                self.take(net, host, queue, 0);
            }
            Event::Read(id) => {
                if let Some(reader) = net.tcp.end(id).and_then(|e| e.reader.take()) {
                    reader.wake();
                }
            }
            Event::Credit(id, bytes) => {
                let Some(end) = net.tcp.alive(id) else { return };
                let largest = net.hosts[end.host].profile.tcp.window_bytes;
                end.in_flight -= bytes;
                end.congestion = (end.congestion + bytes).min(largest);
                if let Some(writer) = end.writer.take() {
                    writer.wake();
                }
                self.make(net, id);
            }
            Event::Reset(id) => self.reset(net, id),
        }
    }

    fn tcp(self: &Arc<Self>, at: u64, event: Event) {
        self.schedule(at, event::Event::Tcp(event));
    }

    // Sending.

    /// Starts to create the next segment on a core, if there is data to send and space for it in the window.
    pub(super) fn make(self: &Arc<Self>, net: &mut Net, id: EndId) {
        let Net { hosts, tcp, .. } = net;
        let Some(end) = tcp.alive(id).filter(|e| e.making.is_none() && !e.ended.1) else { return };
        let host = &mut hosts[end.host];
        let model = &host.profile.tcp;
        let room = end.congestion.saturating_sub(end.in_flight);
        let largest = u64::from(model.segment_bytes);
        let unsent = end.unsent.len() as u64;
        let bytes = unsent.min(room).min(largest);
        let fin = end.ended.0 && bytes == unsent;
        if bytes < unsent.min(largest) || bytes == 0 && !fin {
            return;
        }
        end.in_flight += bytes;
        end.ended.1 = fin;
        end.making = Some(Segment { bytes: end.unsent.drain(..bytes as usize).collect(), fin });
        let calls = std::mem::take(&mut end.calls) * model.call_ns;
        let cost = calls + model.send_segment_ns + host.profile.checksum_ns(bytes);
        let copied = bytes * u64::from(model.send_copies);
        let now = self.now();
        let made = host.copy(now, now, cost, copied);
        self.tcp(made, Event::Made(id));
    }

    fn made(self: &Arc<Self>, net: &mut Net, id: EndId) {
        let Some(end) = net.tcp.alive(id) else { return };
        end.launching.extend(end.making.take());
        let host = &mut net.hosts[end.host];
        let adapter = &host.profile.adapter;
        let (cost, transmit) = (adapter.work_request_ns, adapter.transmit_ns);
        let taken = host.take_up(self.now(), cost);
        self.tcp(taken + transmit, Event::Launch(id));
        self.make(net, id);
    }

    fn launch_segment(self: &Arc<Self>, net: &mut Net, id: EndId) {
        let now = self.now();
        let Some(host) = net.tcp.alive(id).map(|e| e.host) else { return };
        let Some(held) = self.apply_faults(net, id, host) else {
            self.reset(net, id);
            return self.reset(net, peer(id));
        };
        let Some(end) = net.tcp.alive(id) else { return };
        end.held_until = end.held_until.max(held);
        if end.held_until > now {
            return self.tcp(end.held_until, Event::Launch(id));
        }
        let Some(segment) = end.launching.pop_front() else { return };
        net.trace.line(now, id, format_args!("out {segment}"));
        end.outgoing.push_back(segment);
        let egress = &mut net.hosts[host].egress;
        if !std::mem::replace(&mut end.has_turn, true) {
            egress.turns.push_back(id);
        }
        if !egress.busy {
            self.transmit(net, host, now * PS);
        }
    }

    /// Sends the next segment of this end, whose turn it is, from `from_ps` on. Returns whether it had one.
    pub(crate) fn send_segment(self: &Arc<Self>, net: &mut Net, id: EndId, from_ps: u64) -> bool {
        let Some(end) = net.tcp.alive(id) else { return false };
        let host = &mut net.hosts[end.host];
        let segment = end.outgoing.pop_front();
        end.has_turn = !end.outgoing.is_empty();
        let Some(segment) = segment else { return false };
        let bytes = segment.bytes.len() as u64;
        end.turn_packets += host.profile.segment_packets(bytes);
        if !end.has_turn {
            end.turn_packets = 0;
        } else if end.turn_packets >= TURN_PACKETS {
            end.turn_packets = 0;
            host.egress.turns.push_back(id);
        } else {
            host.egress.turns.push_front(id);
        }
        let end_ps = host.pass_out(from_ps, bytes, host.profile.segment_ps(bytes));
        let way = self.one_way() * PS;
        let (head_ps, tail_ps) = (from_ps + way, end_ps + way);
        let event = Event::Head { to: peer(id), segment, head_ps, tail_ps, uplinks: 0 };
        self.tcp(head_ps.div_ceil(PS), event);
        let over = end.is_over();
        if over {
            self.remove_tcp_if_over(net, id);
        }
        true
    }

    // Receiving.

    fn arrived(self: &Arc<Self>, net: &mut Net, to: EndId, segment: Segment) {
        let Some(end) = net.tcp.alive(to) else { return };
        let host = end.host;
        let machine = &mut net.hosts[host];
        let coalesce_ns = machine.profile.tcp.coalesce_ns;
        let queues = &mut machine.receive_queues;
        let queue = to.0 as usize % queues.len().max(1);
        let Some(q) = queues.get_mut(queue) else { return };
        q.waiting.push_back((to, segment));
        if !std::mem::replace(&mut q.busy, true) {
            self.tcp(self.now() + coalesce_ns, Event::Interrupt(host, queue));
        }
    }

    /// Starts to process the next segment of a queue on a core, after `first` nanoseconds of other work.
    fn take(self: &Arc<Self>, net: &mut Net, host: usize, queue: usize, first: u64) {
        let machine = &mut net.hosts[host];
        let Some(q) = machine.receive_queues.get_mut(queue) else { return };
        let Some((to, segment)) = q.waiting.pop_front() else {
            q.busy = false;
            return;
        };
        let sum = machine.profile.checksum_ns(segment.bytes.len() as u64);
        let cost = first + machine.profile.tcp.receive_segment_ns + sum;
        let taken = machine.work(self.now(), cost);
        self.tcp(taken, Event::Taken { to, segment, host, queue });
    }

    fn taken(self: &Arc<Self>, net: &mut Net, to: EndId, segment: Segment) {
        let now = self.now();
        let Some(end) = net.tcp.alive(to) else { return };
        net.trace.line(now, to, format_args!("in {segment}"));
        if end.dropped && !segment.bytes.is_empty() {
            // RFC 9293 section 3.6.1: data arrives after the stream was closed.
            self.reset(net, to);
            return self.send_reset(to);
        }
        end.received.extend(&segment.bytes);
        end.finished |= segment.fin;
        if let Some(reader) = end.reader.take() {
            reader.wake();
        }
    }

    /// Starts to copy received data for the reader on a core. Returns the number of bytes and the end time.
    pub(super) fn read(self: &Arc<Self>, net: &mut Net, id: EndId, most: usize) -> Option<(usize, u64)> {
        let now = self.now();
        let Net { hosts, tcp, .. } = net;
        let end = tcp.alive(id)?;
        let host = &mut hosts[end.host];
        let model = &host.profile.tcp;
        let bytes = most.min(end.received.len());
        let (a, b) = end.received.as_slices();
        let (a, b) = (&a[..bytes.min(a.len())], &b[..bytes.saturating_sub(a.len())]);
        let messages = end.messages.pass(a) + end.messages.pass(b);
        let cost = model.call_ns + messages * host.profile.host.message_ns;
        let copied = bytes as u64 * u64::from(model.receive_copies);
        let done = host.copy(now, now, cost, copied);
        end.reading = Some((bytes, done));
        self.tcp(done, Event::Read(id));
        end.reading
    }

    /// Reports to the peer that the owner of this end has read `bytes` bytes.
    pub(super) fn send_credit(self: &Arc<Self>, id: EndId, bytes: usize) {
        self.tcp(self.now() + self.one_way(), Event::Credit(peer(id), bytes as u64));
    }

    // Reset and close.

    /// Closes the stream of an owner that has dropped it; written data is still sent.
    pub(super) fn drop_stream(self: &Arc<Self>, id: EndId) {
        let mut net = self.net.lock();
        let net = &mut *net;
        let Some(end) = net.tcp.end(id) else { return };
        end.dropped = true;
        end.ended.0 = true;
        if end.failure.is_none() && !end.received.is_empty() {
            // RFC 1122 section 4.2.2.13: unread data is lost, which a reset reports to the peer.
            self.reset(net, id);
            return self.send_reset(id);
        }
        self.make(net, id);
        self.remove_tcp_if_over(net, id);
    }

    /// Discards undelivered data and resets the connection.
    pub(super) fn abort_stream(self: &Arc<Self>, id: EndId) {
        let mut net = self.net.lock();
        if net.tcp.end(id).is_some_and(|end| end.failure.is_none()) {
            self.reset(&mut net, id);
            self.send_reset(id);
        }
    }

    /// Resets a connection that was not accepted.
    pub(super) fn reset_unaccepted(self: &Arc<Self>, net: &mut Net, id: EndId) {
        if let Some(end) = net.tcp.end(id) {
            end.dropped = true;
        }
        self.reset(net, id);
        self.send_reset(id);
    }

    fn reset(self: &Arc<Self>, net: &mut Net, id: EndId) {
        let Some(end) = net.tcp.alive(id) else { return };
        end.fail(io::ErrorKind::ConnectionReset);
        net.trace.line(self.now(), id, format_args!("ends: reset"));
        self.remove_tcp_if_over(net, id);
    }

    /// Reports the failure of this end to the peer.
    fn send_reset(self: &Arc<Self>, id: EndId) {
        self.tcp(self.now() + self.one_way(), Event::Reset(peer(id)));
    }

    /// Removes a connection when both ends are finished.
    fn remove_tcp_if_over(&self, net: &mut Net, id: EndId) {
        if net.tcp.connections.get(&id.0).is_some_and(|c| c.iter().all(End::is_over)) {
            net.tcp.connections.remove(&id.0);
        }
    }

    /// Resets the connections of a host and closes its listeners.
    pub(crate) fn crash_tcp(self: &Arc<Self>, net: &mut Net, host: usize) {
        let here = |(id, c): (&u64, &[End; 2])| {
            let id = *id;
            [0, 1].map(|side| (c[side].host == host).then_some((id, side)))
        };
        let ends: Vec<EndId> = net.tcp.connections.iter().flat_map(here).flatten().collect();
        for id in ends {
            self.reset(net, id);
            self.send_reset(id);
        }
        net.hosts[host].receive_queues.iter_mut().for_each(|q| q.waiting.clear());
        let ip = net.hosts[host].ip;
        net.tcp.listeners.close_all(ip);
    }
}
