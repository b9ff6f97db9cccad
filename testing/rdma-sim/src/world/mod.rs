//! The events of the simulation.
//!
//! ```text
//! software posts (charged: post)       -> TakeUp    the adapter's engine, one work request after the other
//! engine (work request) + transmit     -> Launch    the message queues at the port, shared in round-robin
//! order
//! port out (bytes + headers)           -> Head      its first bit reaches the other port after the
//! propagation
//! port in (cut-through, part by part)  -> Arrive    the last bit, + receive: rights, bounds, memory
//! completion (charged: interrupt ..)   -> Visible   the owner polls it
//! propagation back                     -> Acked     space in the send queue, Sent completions
//! ```
//!
//! Each step is decided at its own time, in the order of time and sequence, so connections share ports and
//! cores in the order of their events. Simplifications: acknowledgements take no bandwidth, single packets
//! are not lost (only whole connections), and memory is written when the last packet of a message arrives.

pub(super) mod egress;
mod ingress;
pub(super) mod machine;
mod placement;
pub(super) mod software;
mod teardown;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use millrace_rdma::{Completion, ConnectionError};
use millrace_runtime::{Instant, virtual_time::Clock};
use parking_lot::Mutex;

use crate::{
    end::End,
    event::{EndId, Event, PS, peer},
    fault::Faults,
    host::{Host, Incoming},
    listeners::Listeners,
    profile::Profile,
    request::ConnectRequest,
    tcp::end::Tcp,
    trace::Trace,
};

pub(super) struct Connection {
    pub(super) ends: [End; 2],
}

/// A link between several hosts and all others.
pub(super) struct Uplink {
    pub(super) hosts: Vec<usize>,
    /// Data rate of each direction, in 10^6 bytes per second, including headers.
    pub(super) mb_per_s: f64,
    /// Times at which the last bits have left it, from these hosts and to them, in picoseconds.
    pub(super) free_ps: [u64; 2],
}

pub(super) struct Net {
    pub(super) hosts: Vec<Host>,
    pub(super) uplinks: Vec<Uplink>,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) tcp: Tcp,
    /// Number of the next connection, RDMA or TCP.
    pub(super) next_connection: u64,
    pub(super) listeners: Listeners<ConnectRequest>,
    pub(super) faults: Faults,
    pub(super) trace: Trace,
}

impl Net {
    pub(super) fn end(&mut self, id: EndId) -> Option<&mut End> {
        self.connections.get_mut(&id.0).map(|c| &mut c.ends[id.1])
    }

    /// Sends `wire` bytes of a part, whose first and last bits arrive at these times, through the uplink with index
    /// `number` of those between two hosts, if there is one. Returns the times at which its first and last bits
    /// leave the uplink. The parts take turns in the order of their arrival.
    pub(super) fn pass_uplink(
        &mut self,
        (source, destination): (usize, usize),
        number: usize,
        wire: u64,
        (head_ps, tail_ps): (u64, u64),
    ) -> Option<(u64, u64)> {
        let ways = [(source, destination, 0), (destination, source, 1)];
        let way = |(near, far, direction): (usize, usize, usize)| {
            let between = move |(_, u): &(usize, &Uplink)| u.hosts.contains(&near) && !u.hosts.contains(&far);
            self.uplinks.iter().enumerate().filter(between).map(move |(n, _)| (n, direction))
        };
        let (n, direction) = ways.into_iter().flat_map(way).nth(number)?;
        let uplink = &mut self.uplinks[n];
        let from_ps = head_ps.max(uplink.free_ps[direction]);
        let port_ps = (wire as f64 * 1e6 / uplink.mb_per_s).round() as u64;
        let end_ps = tail_ps.max(from_ps + port_ps);
        uplink.free_ps[direction] = end_ps;
        Some((from_ps, end_ps))
    }

    /// Returns an end that sends and receives.
    fn alive(&mut self, id: EndId) -> Option<&mut End> {
        self.end(id).filter(|e| e.is_alive())
    }

    pub(super) fn host_of(&self, ip: IpAddr) -> Option<usize> {
        self.hosts.iter().position(|h| h.ip == ip)
    }
}

pub(super) struct Inner {
    pub(super) clock: Clock,
    /// The distance between hosts, and the profile of hosts that have no other.
    pub(super) profile: Arc<Profile>,
    pub(super) net: Mutex<Net>,
}

fn connection_lost() -> ConnectionError {
    ConnectionError::Io("the connection was lost (simulated fault)".into())
}

impl Inner {
    pub(super) fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    /// Propagation delay between two ports in nanoseconds.
    pub(super) fn one_way(&self) -> u64 {
        self.profile.one_way().as_nanos() as u64
    }

    pub(super) fn schedule(self: &Arc<Self>, at: u64, event: Event) {
        let world = Arc::clone(self);
        self.clock.call_at(Instant::from_nanos(at), Box::new(move || world.handle_event(event)));
    }

    fn handle_event(self: &Arc<Self>, event: Event) {
        let mut net = self.net.lock();
        let net = &mut *net;
        match event {
            Event::TakeUp(id) => {
                if let Some(end) = net.alive(id) {
                    end.doorbells += 1;
                    self.take_up(net, id);
                }
            }
            Event::Launch(id) => self.launch(net, id),
            Event::PortFree(host) => {
                let from = net.hosts[host].egress.free_ps;
                self.transmit(net, host, from);
            }
            Event::Head { from, number, part, head_ps, tail_ps, last, uplinks } => {
                let [Some(source), Some(host)] = [from, peer(from)].map(|id| net.end(id).map(|e| e.host))
                else {
                    return;
                };
                let wire = net.hosts[source].profile.wire_bytes(part);
                if let Some((head_ps, tail_ps)) =
                    net.pass_uplink((source, host), uplinks, wire, (head_ps, tail_ps))
                {
                    let uplinks = uplinks + 1;
                    let event = Event::Head { from, number, part, head_ps, tail_ps, last, uplinks };
                    return self.schedule(head_ps.div_ceil(PS), event);
                }
                let (port_ps, then) =
                    (net.hosts[host].profile.port_ps(part), last.then_some(Event::Arrive { from, number }));
                self.enter(net, host, Incoming { bytes: part, port_ps, head_ps, tail_ps, then });
            }
            Event::PortIn(host) => self.admit(net, host),
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
            Event::Tcp(event) => self.handle_tcp_event(net, event),
            Event::Lingered(id) => {
                if net.alive(id).is_some() {
                    self.fail(net, id, ConnectionError::Closed);
                    self.notify_peer(id, ConnectionError::Closed);
                }
            }
        }
    }

    /// Number of regions that peers can access, and their bytes.
    pub(super) fn exposed(&self) -> (usize, usize) {
        let net = self.net.lock();
        let ends = net.connections.values().flat_map(|c| &c.ends);
        ends.map(|e| e.access.exposed()).fold((0, 0), |(n, b), (m, c)| (n + m, b + c))
    }
}
