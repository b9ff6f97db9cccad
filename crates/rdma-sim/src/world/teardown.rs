//! The end of connections: failures, disconnects and crashes of hosts.

use std::sync::Arc;

use millrace_rdma::ConnectionError;

use super::{Connection, Inner, Net, lost};
use crate::{
    end::{End, State},
    event::{EndId, Event, peer},
};

impl Inner {
    /// Forgets a connection that nobody has any more.
    pub(super) fn forget(&self, net: &mut Net, id: EndId) {
        if net.connections.get(&id.0).is_some_and(|c| c.ends.iter().all(End::is_over)) {
            net.connections.remove(&id.0);
        }
    }

    /// An end does nothing more; its owner learns why after what completed before.
    pub(super) fn fail(self: &Arc<Self>, net: &mut Net, id: EndId, error: ConnectionError) {
        let now = self.now();
        let Some(end) = net.alive(id) else { return };
        let at = end.visible_at.max(now);
        let why = error.to_string();
        end.state = State::Failing(error);
        net.trace.line(now, id, format_args!("ends: {why}"));
        self.schedule(at, Event::Ended(id));
    }

    pub(super) fn tell_peer(self: &Arc<Self>, id: EndId, error: ConnectionError) {
        self.schedule(self.now() + self.one_way(), Event::PeerEnded(peer(id), error));
    }

    pub(super) fn ended(self: &Arc<Self>, net: &mut Net, id: EndId) {
        let Some(end) = net.end(id) else { return };
        let State::Failing(error) = &end.state else { return };
        end.state = State::Down(error.clone());
        end.release();
        end.wake();
        self.forget(net, id);
    }

    /// Whatever this host was doing it does no more; its peers find out.
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
            self.fail(net, id, lost());
            self.tell_peer(id, lost());
        }
        let ip = net.hosts[host].ip;
        net.listeners.close_all(ip);
        self.crash_tcp(net, host);
    }
}
