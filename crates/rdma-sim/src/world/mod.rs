//! The world: what happens when, and to whom.
//!
//! ```text
//! software posts (charged: post)      -> TakeUp    the adapter's engine, one work request after another
//! engine (work request) + transmit    -> Launch    the message queues at the port; connections take turns
//! port out (bytes + headers)          -> Head      its first bit reaches the other port after the way
//! port in (cut-through, one part after another) -> Arrive  the last bit, + receive: rights, bounds, memory
//! completion (charged: interrupt ..)  -> Visible   the owner polls it
//! the way back                        -> Acked     a place in the send queue, Sent completions
//! ```
//!
//! Everything is decided at its own time, in order of time and sequence, so machines share ports and cores as they
//! come. Not simulated: acknowledgements take no bandwidth, packets are not lost one by one (whole connections are),
//! and memory is placed when the last packet of a message is there.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use millrace_buffer::Buffer;
use millrace_rdma::{
    Completion, ConnectionError, Counters, Domain, PostError, ReadRequest, SendRequest, WriteRequest,
    stag::AccessError,
};
use millrace_runtime::{Instant, virtual_time::Clock};
use parking_lot::Mutex;

use super::{
    domain::SimDomain,
    doors::Doors,
    end::{End, Message, Outgoing, State},
    fault::{Fate, Faults},
    host::{Coming, EndId, Host, HostUse, PS},
    profile::Profile,
    setup::Knock,
    tcp::{self, Tcp},
    trace::Trace,
};

/// Packets that a connection sends in its turn at a port.
pub(super) const TURN_PACKETS: u64 = 16;
/// How long the end of a connection waits for what was posted before it.
const LINGER: u64 = 1_000_000_000;

/// A program leaves its core to others after so many nanoseconds: it holds up interrupts for no longer.
const SLICE: u64 = 100_000;
/// And after copying so many bytes.
pub(super) const COPY_SLICE: u64 = 64 << 10;

/// What an end's software is charged for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Charge {
    /// A registration of so many bytes.
    Register(usize),
    /// Its end.
    Deregister(usize),
    /// A window bound to so many bytes.
    Bind(usize),
    /// So many windows invalidated.
    Unbind(usize),
    /// So many bytes copied.
    Copy(usize),
}

/// Work of an end's owner.
pub(super) enum Posted {
    Receive(Buffer),
    Send(SendRequest),
    Write(WriteRequest),
    Read(ReadRequest),
}

/// What happens at a point in time.
pub(super) enum Event {
    /// The software has rung for its next work request.
    TakeUp(EndId),
    /// A work request has gone through the adapter.
    Launch(EndId),
    /// The port of this host has sent what it was sending.
    PortFree(usize),
    /// The first bit of a part of a message reaches the port of the peer's host.
    Head { from: EndId, number: u64, part: u64, head_ps: u64, tail_ps: u64, last: bool },
    /// The port of this host has taken what was coming.
    PortIn(usize),
    /// A message is here.
    Arrive { from: EndId, number: u64 },
    /// A read may be served.
    Serve(EndId),
    /// The host has taken a completion.
    Visible(EndId),
    /// The peer has the message of this number.
    Acked(EndId, u64),
    /// The owner learns of the end.
    Ended(EndId),
    /// The other end tells of the end.
    PeerEnded(EndId, ConnectionError),
    /// A disconnected end has waited long enough.
    Lingered(EndId),
    /// To a TCP connection.
    Tcp(tcp::Event),
}

pub(super) struct Connection {
    pub(super) ends: [End; 2],
}

pub(super) struct Net {
    pub(super) hosts: Vec<Host>,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) tcp: Tcp,
    /// Of connections of both kinds.
    pub(super) next_connection: u64,
    pub(super) doors: Doors<Knock>,
    pub(super) faults: Faults,
    pub(super) trace: Trace,
}

impl Net {
    pub(super) fn end(&mut self, id: EndId) -> Option<&mut End> {
        self.connections.get_mut(&id.0).map(|c| &mut c.ends[id.1])
    }

    /// An end that is alive.
    fn alive(&mut self, id: EndId) -> Option<&mut End> {
        self.end(id).filter(|e| e.is_alive())
    }

    pub(super) fn host_of(&self, ip: IpAddr) -> Option<usize> {
        self.hosts.iter().position(|h| h.ip == ip)
    }
}

pub(super) struct Inner {
    pub(super) clock: Clock,
    pub(super) profile: Profile,
    pub(super) net: Mutex<Net>,
}

/// The other end.
pub(super) const fn peer(id: EndId) -> EndId {
    (id.0, 1 - id.1)
}

fn lost() -> ConnectionError {
    ConnectionError::Io("the connection was lost (a simulated fault)".into())
}

impl Inner {
    pub(super) fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    /// Nanoseconds from one port to another.
    pub(super) fn one_way(&self) -> u64 {
        self.profile.one_way().as_nanos() as u64
    }

    pub(super) fn schedule(self: &Arc<Self>, at: u64, event: Event) {
        let world = Arc::clone(self);
        self.clock.call_at(Instant::from_nanos(at), Box::new(move || world.happen(event)));
    }

    fn happen(self: &Arc<Self>, event: Event) {
        let mut net = self.net.lock();
        let net = &mut *net;
        match event {
            Event::TakeUp(id) => {
                if let Some(end) = net.alive(id) {
                    end.rung += 1;
                    self.take_up(net, id);
                }
            }
            Event::Launch(id) => self.launch(net, id),
            Event::PortFree(host) => {
                let from = net.hosts[host].egress.free_ps;
                self.transmit(net, host, from);
            }
            Event::Head { from, number, part, head_ps, tail_ps, last } => {
                let Some(host) = net.end(peer(from)).map(|e| e.host) else { return };
                let (port_ps, then) =
                    (self.profile.port_ps(part), last.then_some(Event::Arrive { from, number }));
                self.enter(net, host, Coming { bytes: part, port_ps, head_ps, tail_ps, then });
            }
            Event::PortIn(host) => self.let_in(net, host),
            Event::Arrive { from, number } => {
                let to = peer(from);
                if let Some(end) = net.alive(to) {
                    end.inbound.push_back(number);
                    self.handle_inbound(net, to);
                }
            }
            Event::Serve(id) => self.serve(net, id),
            Event::Visible(id) => {
                if let Some(end) = net.end(id)
                    && let Some(c) = end.pending.pop_front()
                {
                    let received = matches!(c, Completion::Received { .. });
                    end.completions.push_back(c);
                    end.wake();
                    if received {
                        end.used_receives -= 1;
                        self.handle_inbound(net, id);
                    }
                }
            }
            Event::Acked(id, number) => self.acknowledged(net, id, number),
            Event::Ended(id) => self.ended(net, id),
            Event::PeerEnded(id, error) => self.fail(net, id, error),
            Event::Tcp(event) => self.tcp_happens(net, event),
            Event::Lingered(id) => {
                if net.alive(id).is_some() {
                    self.fail(net, id, ConnectionError::Closed);
                    self.tell_peer(id, ConnectionError::Closed);
                }
            }
        }
    }

    // The software's side.

    /// Charges the owner of `id`, whose later work waits for it, and its host.
    pub(super) fn charge(&self, id: EndId, what: Charge) {
        let p = &self.profile;
        let (r, pages) = (&p.registration, |bytes| p.pages(bytes));
        let (cpu, table) = match what {
            Charge::Register(b) => (r.register_ns + pages(b) * r.register_page_ns, r.table_ns),
            Charge::Deregister(b) => (r.deregister_ns + pages(b) * r.deregister_page_ns, r.table_ns),
            Charge::Bind(b) => (r.bind_ns + pages(b) * r.bind_page_ns, 0),
            Charge::Unbind(n) => (r.unbind_ns * n as u64, 0),
            Charge::Copy(_) => (0, 0),
        };
        let now = self.now();
        let mut net = self.net.lock();
        let Some(end) = net.end(id) else { return };
        let (host, from) = (end.host, now.max(end.software_free));
        let done = match what {
            Charge::Copy(bytes) => net.hosts[host].copy(now, from, 0, bytes as u64, p),
            _ => net.hosts[host].work(from, cpu),
        };
        let done = net.hosts[host].change_table(done, table);
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

    pub(super) fn post(self: &Arc<Self>, id: EndId, posted: Posted) -> Result<(), PostError> {
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
        self.ring(net, id, message);
        Ok(())
    }

    /// Gives the adapter a work request, when the software has come to it.
    fn ring(self: &Arc<Self>, net: &mut Net, id: EndId, message: Message) {
        let now = self.now();
        let Some(end) = net.end(id) else { return };
        let number = end.insert(message);
        end.posted.push_back(number);
        let (host, from) = (end.host, now.max(end.software_free));
        let rings = net.hosts[host].work(from, self.profile.host.post_ns);
        if let Some(end) = net.end(id) {
            end.software_free = rings;
        }
        self.schedule(rings, Event::TakeUp(id));
    }

    pub(super) fn poll(
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

    pub(super) fn disconnect(self: &Arc<Self>, id: EndId) {
        let mut net = self.net.lock();
        let Some(end) = net.end(id).filter(|e| matches!(e.state, State::Open)) else { return };
        end.state = State::Disconnecting;
        self.ring(&mut net, id, Message::Fin);
        self.schedule(self.now() + LINGER, Event::Lingered(id));
    }

    pub(super) fn counters(&self, id: EndId) -> Counters {
        self.net.lock().end(id).map(|e| e.counters).unwrap_or_default()
    }

    /// The owner of an end is gone.
    pub(super) fn dropped(self: &Arc<Self>, id: EndId) {
        let mut net = self.net.lock();
        let Some(end) = net.end(id) else { return };
        end.dropped = true;
        end.completions.clear();
        if matches!(end.state, State::Disconnecting) {
            return; // What was posted still goes.
        }
        if end.is_alive() {
            self.tell_peer(id, ConnectionError::Closed);
        }
        end.release();
        end.state = State::Down(ConnectionError::Closed);
        self.forget(&mut net, id);
    }

    /// Forgets a connection that nobody has any more.
    fn forget(&self, net: &mut Net, id: EndId) {
        if net.connections.get(&id.0).is_some_and(|c| c.ends.iter().all(End::is_over)) {
            net.connections.remove(&id.0);
        }
    }

    // The adapter's side: out.

    /// Takes up what was rung for, as far as the send queue has room.
    fn take_up(self: &Arc<Self>, net: &mut Net, id: EndId) {
        let adapter = &self.profile.adapter;
        while let Some(end) = net.alive(id)
            && end.rung > 0
            && end.unacknowledged < adapter.send_queue
            && let Some(number) = end.posted.pop_front()
        {
            end.rung -= 1;
            end.unacknowledged += 1;
            end.launching.push_back(number);
            let host = end.host;
            let taken = net.hosts[host].take_up(self.now(), adapter.work_request_ns);
            self.schedule(taken + adapter.transmit_ns, Event::Launch(id));
        }
    }

    fn launch(self: &Arc<Self>, net: &mut Net, id: EndId) {
        let now = self.now();
        let Some(host) = net.alive(id).map(|e| e.host) else { return };
        let Some(held) = self.suffer(net, id, host) else {
            self.fail(net, id, lost());
            return self.fail(net, peer(id), lost());
        };
        let Some(end) = net.end(id) else { return };
        end.held_until = end.held_until.max(held);
        if end.held_until > now {
            let until = end.held_until;
            return self.schedule(until, Event::Launch(id));
        }
        let Some(number) = end.launching.pop_front() else { return };
        self.queue_at_port(net, id, number);
    }

    /// Draws what happens to what leaves this end's adapter now: until when it is held up, or `None`: its connection is
    /// lost.
    pub(super) fn suffer(&self, net: &mut Net, id: EndId, host: usize) -> Option<u64> {
        let now = self.now();
        let Net { faults, trace, hosts, .. } = net;
        match faults.fate(&self.clock) {
            Fate::Sent => Some(now),
            Fate::Held(time) => {
                trace.line(now, id, format_args!("fault: held for {time} ns"));
                Some(now + time)
            }
            Fate::Stalled(time) => {
                trace.line(now, id, format_args!("fault: host {host} stands still for {time} ns"));
                hosts[host].stall(now + time);
                Some(now)
            }
            Fate::Lost => {
                trace.line(now, id, format_args!("fault: the connection is lost"));
                None
            }
        }
    }

    fn queue_at_port(self: &Arc<Self>, net: &mut Net, id: EndId, number: u64) {
        let now = self.now();
        let Net { connections, hosts, trace, .. } = net;
        let Some(end) = connections.get_mut(&id.0).map(|c| &mut c.ends[id.1]) else { return };
        let Some(message) = end.messages.get(&number) else { return };
        trace.line(now, id, format_args!("out {number} {} {}", message.name(), message.payload()));
        match message {
            Message::Write(_) | Message::Response { .. } => {
                end.counters.tagged_bytes_out += message.payload();
            }
            _ => {}
        }
        end.outgoing.push_back(Outgoing { number, sent: 0 });
        let host = end.host;
        let egress = &mut hosts[host].egress;
        if !std::mem::replace(&mut end.has_turn, true) {
            egress.turns.push_back(id);
        }
        if !egress.busy {
            self.transmit(net, host, now * PS);
        }
    }

    /// Has the port of a host send what is next in turn, from `from_ps` on.
    pub(super) fn transmit(self: &Arc<Self>, net: &mut Net, host: usize, from_ps: u64) {
        net.hosts[host].egress.busy = false;
        while let Some(id) = net.hosts[host].egress.turns.pop_front() {
            let sent = match net.connections.contains_key(&id.0) {
                true => self.send_part(net, id, from_ps),
                false => self.send_segment(net, id, from_ps),
            };
            if sent {
                let free = net.hosts[host].egress.free_ps.div_ceil(PS);
                return self.schedule(free, Event::PortFree(host));
            }
        }
    }

    /// Sends the next part of a message of this end, whose turn it is, from `from_ps` on; whether it had one.
    fn send_part(self: &Arc<Self>, net: &mut Net, id: EndId, from_ps: u64) -> bool {
        let Net { connections, hosts, .. } = net;
        let Some(end) = connections.get_mut(&id.0).map(|c| &mut c.ends[id.1]) else { return false };
        end.has_turn = false;
        let Some(out) = end.outgoing.front_mut() else { return false };
        let (number, message) = (out.number, end.messages.get(&out.number));
        let Some(message) = message.filter(|_| matches!(end.state, State::Open | State::Disconnecting))
        else {
            end.outgoing.clear();
            return false;
        };
        let machine = &mut hosts[end.host];
        let turn = TURN_PACKETS * u64::from(self.profile.link.mtu_bytes);
        let part = (message.payload() - out.sent).min(turn);
        out.sent += part;
        let last = out.sent == message.payload();
        let end_ps = machine.pass_out(from_ps, part, self.profile.port_ps(part), &self.profile);
        if last && matches!(message, Message::Response { .. }) {
            end.serving.pop_front();
            end.responder_free = end_ps.div_ceil(PS);
            if !end.serving.is_empty() {
                let serves = end.responder_free + self.profile.adapter.read_response_ns;
                self.schedule(serves, Event::Serve(id));
            }
        }
        if last {
            end.outgoing.pop_front();
        }
        if !end.outgoing.is_empty() {
            end.has_turn = true;
            machine.egress.turns.push_back(id);
        }
        let way = self.one_way() * PS;
        let (head_ps, tail_ps) = (from_ps + way, end_ps + way);
        let event = Event::Head { from: id, number, part, head_ps, tail_ps, last };
        self.schedule(head_ps.div_ceil(PS), event);
        true
    }

    // In.

    /// What comes to the port of a host passes it after all that came before.
    pub(super) fn enter(self: &Arc<Self>, net: &mut Net, host: usize, coming: Coming) {
        let ingress = &mut net.hosts[host].ingress;
        ingress.waiting.push_back(coming);
        if !ingress.busy {
            self.let_in(net, host);
        }
    }

    /// Has the port of a host take what came next.
    fn let_in(self: &Arc<Self>, net: &mut Net, host: usize) {
        let machine = &mut net.hosts[host];
        machine.ingress.busy = false;
        let Some(coming) = machine.ingress.waiting.pop_front() else { return };
        let here = machine.pass_in(&coming, &self.profile).div_ceil(PS);
        self.schedule(here, Event::PortIn(host));
        if let Some(event) = coming.then {
            self.schedule(here + self.profile.adapter.receive_ns, event);
        }
    }

    /// Handles what has come, in order, as far as there are receives for it.
    fn handle_inbound(self: &Arc<Self>, net: &mut Net, me: EndId) {
        while let Some(end) = net.alive(me)
            && let Some(number) = end.inbound.front().copied()
        {
            let Some(connection) = net.connections.get_mut(&me.0) else { return };
            let [a, b] = &mut connection.ends;
            let (here, there) = if me.1 == 0 { (a, b) } else { (b, a) };
            let handled = match there.messages.get(&number) {
                // Its sender is gone.
                None => Handled::Nothing,
                Some(message) => here.take(message, &there.domain, self.profile.adapter.receive_queue),
            };
            if matches!(handled, Handled::NoReceive) {
                return;
            }
            here.inbound.pop_front();
            let now = self.now();
            net.trace.line(now, me, format_args!("in {number} {handled}"));
            self.after(net, me, number, handled);
        }
    }

    /// What follows from a message of the peer.
    fn after(self: &Arc<Self>, net: &mut Net, me: EndId, number: u64, handled: Handled) {
        let back = self.now() + self.one_way();
        match handled {
            Handled::Nothing | Handled::NoReceive => {}
            Handled::Placed => self.schedule(back, Event::Acked(peer(me), number)),
            Handled::Received(completion) => {
                self.schedule(back, Event::Acked(peer(me), number));
                self.complete(net, me, completion);
            }
            Handled::Asked => {
                let Some(end) = net.end(me) else { return };
                end.serving.push_back(number);
                if end.serving.len() == 1 {
                    let from = end.responder_free.max(self.now());
                    self.schedule(from + self.profile.adapter.read_response_ns, Event::Serve(me));
                }
            }
            Handled::Answered(read) => {
                if let Some(end) = net.end(peer(me)) {
                    end.messages.remove(&number);
                }
                self.read_done(net, me, read);
            }
            Handled::Fin => {
                self.fail(net, me, ConnectionError::Closed);
                self.tell_peer(me, ConnectionError::Closed);
            }
            Handled::Broken(why) => {
                self.fail(net, me, ConnectionError::PeerMisbehaved(why.into()));
                self.tell_peer(me, ConnectionError::Terminated(why.into()));
            }
        }
    }

    /// A read of ours has all its bytes: `read` is its number.
    fn read_done(self: &Arc<Self>, net: &mut Net, me: EndId, read: u64) {
        let Some(end) = net.end(me) else { return };
        let Some(Message::Read(request)) = end.messages.remove(&read) else { return };
        end.unacknowledged -= 1;
        let next = end.waiting_reads.pop_front();
        if next.is_none() {
            end.reads_in_flight -= 1;
        }
        self.complete(net, me, Completion::Read { id: request.id, sink: request.sink });
        if let Some(next) = next {
            self.ring(net, me, Message::Read(next));
        }
        self.take_up(net, me);
    }

    /// Sends the response to the read of the peer that is first in turn.
    fn serve(self: &Arc<Self>, net: &mut Net, me: EndId) {
        let Some(connection) = net.connections.get_mut(&me.0) else { return };
        let [a, b] = &mut connection.ends;
        let (here, there) = if me.1 == 0 { (a, b) } else { (b, a) };
        if !here.is_alive() {
            return;
        }
        let Some(read) = here.serving.front().copied() else { return };
        let Some(Message::Read(request)) = there.messages.get(&read) else { return };
        let from = request.from;
        if let Err(denied) = here.domain.check_read(&from) {
            return self.after(net, me, read, Handled::Broken(why(denied)));
        }
        here.counters.peer_reads += 1;
        let number = here.insert(Message::Response { read, from });
        self.queue_at_port(net, me, number);
    }

    fn acknowledged(self: &Arc<Self>, net: &mut Net, me: EndId, number: u64) {
        let Some(end) = net.alive(me) else { return };
        let message = end.messages.remove(&number);
        end.unacknowledged -= 1;
        if let Some(Message::Send { signaled: Some(id), .. }) = message {
            self.complete(net, me, Completion::Sent(id));
        }
        self.take_up(net, me);
    }

    /// The adapter completes work: the host takes it, which costs processor time.
    fn complete(self: &Arc<Self>, net: &mut Net, me: EndId, completion: Completion) {
        let model = &self.profile.host;
        let now = self.now();
        let Some(end) = net.end(me) else { return };
        let idle = end.pending.is_empty() && end.completions.is_empty();
        let mut cost = model.completion_ns;
        if idle {
            cost += model.interrupt_ns;
        }
        if matches!(completion, Completion::Received { .. }) {
            cost += model.message_ns;
        }
        // One connection's completions are taken in order.
        let (host, from) = (end.host, now.max(end.visible_at));
        end.pending.push_back(completion);
        let at = net.hosts[host].work(from, cost);
        if let Some(end) = net.end(me) {
            end.visible_at = at;
        }
        self.schedule(at, Event::Visible(me));
    }

    // The end.

    /// An end does nothing more; its owner learns why after what completed before.
    fn fail(self: &Arc<Self>, net: &mut Net, id: EndId, error: ConnectionError) {
        let now = self.now();
        let Some(end) = net.alive(id) else { return };
        let at = end.visible_at.max(now);
        let why = error.to_string();
        end.state = State::Failing(error);
        net.trace.line(now, id, format_args!("ends: {why}"));
        self.schedule(at, Event::Ended(id));
    }

    fn tell_peer(self: &Arc<Self>, id: EndId, error: ConnectionError) {
        self.schedule(self.now() + self.one_way(), Event::PeerEnded(peer(id), error));
    }

    fn ended(self: &Arc<Self>, net: &mut Net, id: EndId) {
        let Some(end) = net.end(id) else { return };
        let State::Failing(error) = &end.state else { return };
        end.state = State::Down(error.clone());
        end.release();
        end.wake();
        self.forget(net, id);
    }

    /// Whatever this host was doing it does no more; its peers find out.
    pub(super) fn crash(self: &Arc<Self>, host: usize) {
        let mut net = self.net.lock();
        let net = &mut *net;
        let here = |c: &Connection, side: usize| c.ends[side].host == host;
        let ends: Vec<EndId> = net
            .connections
            .iter()
            .flat_map(|(id, c)| [0, 1].into_iter().filter(move |s| here(c, *s)).map(|s| (*id, s)))
            .collect();
        for id in ends {
            self.fail(net, id, lost());
            self.tell_peer(id, lost());
        }
        let ip = net.hosts[host].ip;
        net.doors.close_all(ip);
        self.crash_tcp(net, host);
    }

    pub(super) fn host_use(&self, ip: IpAddr) -> Option<HostUse> {
        let net = self.net.lock();
        net.host_of(ip).map(|h| net.hosts[h].used)
    }

    /// Connections whose memory a peer could still reach, and their bytes.
    pub(super) fn exposed(&self) -> (usize, usize) {
        let net = self.net.lock();
        let ends = net.connections.values().flat_map(|c| &c.ends);
        ends.map(|e| e.domain.exposed()).fold((0, 0), |(n, b), (m, c)| (n + m, b + c))
    }

    /// Has a core of this host work, and waits for it.
    pub(super) async fn work(self: Arc<Self>, host: usize, time: Duration) {
        let mut left = time.as_nanos() as u64;
        while left > 0 {
            let slice = left.min(SLICE);
            left -= slice;
            let done = self.net.lock().hosts[host].work(self.now(), slice);
            self.clock.sleep_until(Instant::from_nanos(done)).await;
        }
    }

    /// Has a core of this host copy, and waits for it.
    pub(super) async fn copy(self: Arc<Self>, host: usize, bytes: u64) {
        let mut left = bytes;
        while left > 0 {
            let slice = left.min(COPY_SLICE);
            left -= slice;
            let now = self.now();
            let done = self.net.lock().hosts[host].copy(now, now, 0, slice, &self.profile);
            self.clock.sleep_until(Instant::from_nanos(done)).await;
        }
    }

    pub(super) fn stall(&self, host: usize, time: Duration) {
        let until = self.now() + time.as_nanos() as u64;
        self.net.lock().hosts[host].stall(until);
    }
}

/// What became of a message of the peer.
enum Handled {
    Nothing,
    /// It waits for a receive.
    NoReceive,
    Placed,
    Received(Completion),
    /// A read.
    Asked,
    /// The response to our read of this number.
    Answered(u64),
    Fin,
    /// The peer may not do this.
    Broken(&'static str),
}

impl std::fmt::Display for Handled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nothing => "gone",
            Self::NoReceive => "waits",
            Self::Placed => "placed",
            Self::Received(_) => "received",
            Self::Asked => "asked",
            Self::Answered(_) => "answered",
            Self::Fin => "fin",
            Self::Broken(why) => why,
        })
    }
}

const fn why(denied: AccessError) -> &'static str {
    match denied {
        AccessError::Stag | AccessError::Released => "it used a steering tag that is not valid",
        AccessError::Rights => "it used a steering tag without the right to do so",
        AccessError::Bounds | AccessError::Wrap => "it reached beyond the bounds of a region",
    }
}

impl End {
    /// Takes a message of the peer; the adapter holds so many receives.
    fn take(&mut self, message: &Message, theirs: &SimDomain, receive_queue: u32) -> Handled {
        let bytes = message.payload();
        match message {
            Message::Send { data, invalidate, .. } => {
                if self.used_receives >= receive_queue {
                    return Handled::NoReceive;
                }
                let Some(mut buffer) = self.receives.pop_front() else { return Handled::NoReceive };
                if data.len() > buffer.len() {
                    return Handled::Broken("its message is longer than the receive for it");
                }
                let tag = *invalidate;
                if tag.is_some_and(|tag| !self.domain.invalidate(tag.0)) {
                    return Handled::Broken("it invalidated a steering tag that is not ours to lose");
                }
                buffer.set_len(data.len());
                let mut at = 0;
                for v in data.iter() {
                    buffer[at..at + v.len()].copy_from_slice(v);
                    at += v.len();
                }
                self.counters.receives += 1;
                self.used_receives += 1;
                Handled::Received(Completion::Received { buffer, invalidated: tag })
            }
            Message::Write(request) => match self.domain.place(&request.to, &request.data) {
                Ok(()) => {
                    self.counters.peer_writes += 1;
                    self.counters.tagged_bytes_in += bytes;
                    self.counters.placed_directly += bytes;
                    Handled::Placed
                }
                Err(denied) => Handled::Broken(why(denied)),
            },
            Message::Read(_) => Handled::Asked,
            Message::Response { read, from } => {
                let Some(Message::Read(request)) = self.messages.get_mut(read) else {
                    return Handled::Nothing;
                };
                match theirs.fill(from, &mut request.sink) {
                    Ok(()) => {
                        self.counters.tagged_bytes_in += bytes;
                        self.counters.placed_directly += bytes;
                        Handled::Answered(*read)
                    }
                    // Its owner has revoked it while it was on its way.
                    Err(denied) => Handled::Broken(why(denied)),
                }
            }
            Message::Fin => Handled::Fin,
        }
    }
}
