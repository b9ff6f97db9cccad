//! The end of connections: failures, disconnects and crashes of hosts.

use std::sync::Arc;

use millrace_rdma::ConnectionError;

use super::{Connection, Inner, Net, connection_lost};
use crate::{
    end::{End, State},
    event::{EndId, Event, peer},
};

impl Inner {
    /// Removes a connection when both ends are finished.
    pub(super) fn remove_if_over(&self, net: &mut Net, id: EndId) {
        if net.connections.get(&id.0).is_some_and(|c| c.ends.iter().all(End::is_over)) {
            net.connections.remove(&id.0);
        }
    }

    /// Fails an end; its owner gets the error after the earlier completions.
    pub(super) fn fail(self: &Arc<Self>, net: &mut Net, id: EndId, error: ConnectionError) {
        let now = self.now();
        let Some(end) = net.alive(id) else { return };
        let at = end.visible_at.max(now);
        let why = error.to_string();
        end.state = State::Failing(error);
        net.trace.line(now, id, format_args!("ends: {why}"));
        self.schedule(at, Event::Ended(id));
    }

    pub(super) fn notify_peer(self: &Arc<Self>, id: EndId, error: ConnectionError) {
        self.schedule(self.now() + self.one_way(), Event::PeerEnded(peer(id), error));
    }

    pub(super) fn ended(self: &Arc<Self>, net: &mut Net, id: EndId) {
        let Some(end) = net.end(id) else { return };
        let State::Failing(error) = &end.state else { return };
        end.state = State::Down(error.clone());
        end.release();
        end.wake();
        self.remove_if_over(net, id);
    }

    /// Ends all activity of this host; its peers are notified.
    pub(crate) fn crash(self: &Arc<Self>, host: usize) {
        let mut net = self.net.lock();
        let net = &mut *net;
        let here = |c: &Connection, side: usize| c.ends[side].host == host;
        let ends: Vec<EndId> = net
            .connections
            .iter()
            .flat_map(|(id, c)| [0, 1].into_iter().filter(move |s| here(c, *s)).map(|s| (*id, s)))
            .collect();
        for id in ends {
            self.fail(net, id, connection_lost());
            self.notify_peer(id, connection_lost());
        }
        let ip = net.hosts[host].ip;
        net.listeners.close_all(ip);
        self.crash_tcp(net, host);
    }
}
