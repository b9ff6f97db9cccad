//! The adapter's receive side: the port, messages in order, RDMA Reads and acknowledgements.

use std::sync::Arc;

use millrace_rdma::{Completion, ConnectionError};

use super::{
    Inner, Net,
    placement::{Handled, why},
};
use crate::{
    end::Message,
    event::{EndId, Event, PS, peer},
    host::Coming,
};

impl Inner {
    /// What comes to the port of a host passes it after all that came before.
    pub(crate) fn enter(self: &Arc<Self>, net: &mut Net, host: usize, coming: Coming) {
        let ingress = &mut net.hosts[host].ingress;
        ingress.waiting.push_back(coming);
        if !ingress.busy {
            self.admit(net, host);
        }
    }

    /// Has the port of a host take what came next.
    pub(super) fn admit(self: &Arc<Self>, net: &mut Net, host: usize) {
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
    pub(super) fn handle_inbound(self: &Arc<Self>, net: &mut Net, me: EndId) {
        while let Some(end) = net.alive(me)
            && let Some(number) = end.inbound.front().copied()
        {
            let Some(connection) = net.connections.get_mut(&me.0) else { return };
            let [a, b] = &mut connection.ends;
            let (here, there) = if me.1 == 0 { (a, b) } else { (b, a) };
            let handled = match there.messages.get(&number) {
                // Its sender is gone.
                None => Handled::Nothing,
                Some(message) => here.take(message, &there.access, self.profile.adapter.receive_queue),
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
            return self.after(net, me, read, Handled::Broken(why(denied)));
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
