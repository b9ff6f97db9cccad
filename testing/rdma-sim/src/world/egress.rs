//! The adapter's sending side: work requests, faults, and sharing of the port.

use std::sync::Arc;

use super::{Inner, Net, connection_lost};
use crate::{
    end::{Message, Outgoing, State},
    event::{EndId, Event, PS, peer},
    fault::FaultOutcome,
};

/// Number of packets that a connection sends per turn at a port.
pub(crate) const TURN_PACKETS: u64 = 16;

impl Inner {
    /// Fetches work requests whose doorbell was rung, as far as the send queue has space.
    pub(super) fn take_up(self: &Arc<Self>, net: &mut Net, id: EndId) {
        let Some(host) = net.alive(id).map(|e| e.host) else { return };
        let profile = Arc::clone(&net.hosts[host].profile);
        let adapter = &profile.adapter;
        while let Some(end) = net.alive(id)
            && end.doorbells > 0
            && end.unacknowledged < adapter.send_queue
            && let Some(number) = end.posted.pop_front()
        {
            end.doorbells -= 1;
            end.unacknowledged += 1;
            end.launching.push_back(number);
            let taken = net.hosts[host].take_up(self.now(), adapter.work_request_ns);
            self.schedule(taken + adapter.transmit_ns, Event::Launch(id));
        }
    }

    pub(super) fn launch(self: &Arc<Self>, net: &mut Net, id: EndId) {
        let now = self.now();
        let Some(host) = net.alive(id).map(|e| e.host) else { return };
        let Some(held) = self.apply_faults(net, id, host) else {
            self.fail(net, id, connection_lost());
            return self.fail(net, peer(id), connection_lost());
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

    /// Draws faults for a message that leaves this end's adapter now. Returns the time until which it is
    /// delayed, or `None` if its connection is lost.
    pub(crate) fn apply_faults(&self, net: &mut Net, id: EndId, host: usize) -> Option<u64> {
        let now = self.now();
        let Net { faults, trace, hosts, .. } = net;
        match faults.draw(&self.clock) {
            FaultOutcome::Sent => Some(now),
            FaultOutcome::Held(time) => {
                trace.line(now, id, format_args!("fault: held for {time} ns"));
                Some(now + time)
            }
            FaultOutcome::Stalled(time) => {
                trace.line(now, id, format_args!("fault: host {host} stands still for {time} ns"));
                hosts[host].stall(now + time);
                Some(now)
            }
            FaultOutcome::Lost => {
                trace.line(now, id, format_args!("fault: the connection is lost"));
                None
            }
        }
    }

    pub(super) fn queue_at_port(self: &Arc<Self>, net: &mut Net, id: EndId, number: u64) {
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

    /// Sends the next part through the port of a host, from `from_ps` on.
    pub(crate) fn transmit(self: &Arc<Self>, net: &mut Net, host: usize, from_ps: u64) {
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

    /// Sends the next part of a message of this end, whose turn it is, from `from_ps` on. Returns whether it
    /// had one.
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
        let turn = TURN_PACKETS * u64::from(machine.profile.link.mtu_bytes);
        let part = (message.payload() - out.sent).min(turn);
        out.sent += part;
        let last = out.sent == message.payload();
        let end_ps = machine.pass_out(from_ps, part, machine.profile.port_ps(part));
        if last && matches!(message, Message::Response { .. }) {
            end.serving.pop_front();
            end.responder_free = end_ps.div_ceil(PS);
            if !end.serving.is_empty() {
                let serves = end.responder_free + machine.profile.adapter.read_response_ns;
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
        let event = Event::Head { from: id, number, part, head_ps, tail_ps, last, uplinks: 0 };
        self.schedule(head_ps.div_ceil(PS), event);
        true
    }
}
