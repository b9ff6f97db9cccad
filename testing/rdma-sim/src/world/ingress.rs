//! The adapter's receiving side: port, messages in order, RDMA Reads and acknowledgements.

use std::sync::Arc;

use millrace_rdma::{Completion, ConnectionError};

use super::{
    Inner, Net,
    placement::{Outcome, describe},
};
use crate::{
    end::Message,
    event::{EndId, Event, PS, peer},
    host::Incoming,
};

impl Inner {
    /// Queues a part at the port of a host, after those that arrived before.
    pub(crate) fn enter(self: &Arc<Self>, net: &mut Net, host: usize, incoming: Incoming) {
        let ingress = &mut net.hosts[host].ingress;
        ingress.waiting.push_back(incoming);
        if !ingress.busy {
            self.admit(net, host);
        }
    }

    /// Receives the next part at the port of a host.
    pub(super) fn admit(self: &Arc<Self>, net: &mut Net, host: usize) {
        let machine = &mut net.hosts[host];
        machine.ingress.busy = false;
        let Some(incoming) = machine.ingress.waiting.pop_front() else { return };
        let here = machine.pass_in(&incoming).div_ceil(PS);
        let received = here + machine.profile.adapter.receive_ns;
        self.schedule(here, Event::PortIn(host));
        if let Some(event) = incoming.then {
            self.schedule(received, event);
        }
    }

    /// Processes received messages in order, as far as there are receives for them.
    pub(super) fn handle_inbound(self: &Arc<Self>, net: &mut Net, me: EndId) {
        while let Some(end) = net.alive(me)
            && let Some(number) = end.inbound.front().copied()
        {
            let host = end.host;
            let Some(connection) = net.connections.get_mut(&me.0) else { return };
            let [a, b] = &mut connection.ends;
            let (here, there) = if me.1 == 0 { (a, b) } else { (b, a) };
            let receive_queue = net.hosts[host].profile.adapter.receive_queue;
            let outcome = match there.messages.get(&number) {
                // The sender has failed.
                None => Outcome::Nothing,
                Some(message) => here.take(message, &there.access, receive_queue),
            };
            if matches!(outcome, Outcome::NoReceive) {
                return;
            }
            here.inbound.pop_front();
            let now = self.now();
            net.trace.line(now, me, format_args!("in {number} {outcome}"));
            self.handle_outcome(net, me, number, outcome);
        }
    }

    /// Handles the outcome of a message of the peer.
    fn handle_outcome(self: &Arc<Self>, net: &mut Net, me: EndId, number: u64, outcome: Outcome) {
        let back = self.now() + self.one_way();
        match outcome {
            Outcome::Nothing | Outcome::NoReceive => {}
            Outcome::Placed => self.schedule(back, Event::Acked(peer(me), number)),
            Outcome::Received(completion) => {
                self.schedule(back, Event::Acked(peer(me), number));
                self.complete(net, me, completion);
            }
            Outcome::ReadRequested => {
                let Net { connections, hosts, .. } = net;
                let Some(end) = connections.get_mut(&me.0).map(|c| &mut c.ends[me.1]) else { return };
                end.serving.push_back(number);
                if end.serving.len() == 1 {
                    let from = end.responder_free.max(self.now());
                    let delay = hosts[end.host].profile.adapter.read_response_ns;
                    self.schedule(from + delay, Event::Serve(me));
                }
            }
            Outcome::ReadCompleted(read) => {
                if let Some(end) = net.end(peer(me)) {
                    end.messages.remove(&number);
                }
                self.read_done(net, me, read);
            }
            Outcome::Fin => {
                self.fail(net, me, ConnectionError::Closed);
                self.notify_peer(me, ConnectionError::Closed);
            }
            Outcome::Violation(why) => {
                self.fail(net, me, ConnectionError::PeerMisbehaved(why.into()));
                self.notify_peer(me, ConnectionError::Terminated(why.into()));
            }
        }
    }

    /// Completes the read with the number `read` of this end.
    fn read_done(self: &Arc<Self>, net: &mut Net, me: EndId, read: u64) {
        let Some(end) = net.end(me) else { return };
        let Some(Message::Read(request)) = end.messages.remove(&read) else { return };
        end.unacknowledged -= 1;
        let (host, next) = (end.host, end.waiting_reads.pop_front());
        if next.is_none() {
            end.reads_in_flight -= 1;
        }
        let copies = if me.1 == 0 { net.hosts[host].profile.kernel.read_copies } else { 0 };
        let bytes = u64::from(request.from.length) * u64::from(copies);
        let completion = Completion::Read { id: request.id, sink: request.sink };
        self.complete_with_copy(net, me, completion, bytes);
        if let Some(next) = next {
            self.ring_doorbell(net, me, Message::Read(next));
        }
        self.take_up(net, me);
    }

    /// Sends the response to the first waiting read of the peer.
    pub(super) fn serve(self: &Arc<Self>, net: &mut Net, me: EndId) {
        let Some(connection) = net.connections.get_mut(&me.0) else { return };
        let [a, b] = &mut connection.ends;
        let (here, there) = if me.1 == 0 { (a, b) } else { (b, a) };
        if !here.is_alive() {
            return;
        }
        let Some(read) = here.serving.front().copied() else { return };
        let Some(Message::Read(request)) = there.messages.get(&read) else { return };
        let from = request.from;
        if let Err(denied) = here.access.check_read(&from) {
            return self.handle_outcome(net, me, read, Outcome::Violation(describe(denied)));
        }
        here.counters.peer_reads += 1;
        let number = here.insert(Message::Response { read, from });
        self.queue_at_port(net, me, number);
    }

    pub(super) fn acknowledged(self: &Arc<Self>, net: &mut Net, me: EndId, number: u64) {
        let Some(end) = net.alive(me) else { return };
        let message = end.messages.remove(&number);
        end.unacknowledged -= 1;
        if let Some(Message::Send { signaled: Some(id), .. }) = message {
            self.complete(net, me, Completion::Sent(id));
        }
        self.take_up(net, me);
    }
}
