//! One client for each caller's credentials; all of them share the connections.

use std::collections::HashMap;

use millrace_client::{Identity, handles::Client};
use millrace_fuse_session::caller;
use millrace_runtime::RuntimeRef;
use parking_lot::Mutex;

/// Identities that are cached.
const MAX_IDENTITIES: usize = 1024;

pub(crate) struct CredentialCache {
    client: Client,
    own: Identity,
    clients: Mutex<HashMap<CredentialKey, Client>>,
}

/// The supplementary groups of a thread; empty if it does not exist.
async fn groups_of(rt: &RuntimeRef, tid: u32) -> Vec<u32> {
    caller::blocking(rt, move || Identity::groups_of(&tid.to_string())).await
}

/// User, group and supplementary groups.
type CredentialKey = (u32, u32, Vec<u32>);

impl CredentialCache {
    pub(crate) fn new(client: Client, own: Identity) -> Self {
        Self { client, own, clients: Mutex::default() }
    }

    /// Client with the credentials of the mounting process.
    pub(crate) fn default_client(&self) -> &Client {
        &self.client
    }

    /// Returns the client for a FUSE request. The kernel passes user and group (`ids`) and the thread; the supplementary
    /// groups are read from the thread, since it may have dropped some.
    pub(crate) async fn get(&self, rt: &RuntimeRef, ids: (u32, u32), tid: u32) -> Client {
        // Root's groups are not read: a server that trusts root does not check them.
        let is_own_root = ids.0 == 0 && (self.own.uid, self.own.gid) == ids;
        if is_own_root { self.client.clone() } else { self.of_groups(ids, groups_of(rt, tid).await) }
    }

    fn of_groups(&self, (uid, gid): (u32, u32), gids: Vec<u32>) -> Client {
        let own = (self.own.uid, self.own.gid);
        if own == (uid, gid) && self.own.gids == gids {
            return self.client.clone();
        }
        let who = (uid, gid, gids);
        let mut known = self.clients.lock();
        if let Some(client) = known.get(&who) {
            return client.clone();
        }
        let identity = Identity { uid, gid, gids: who.2.clone(), machine: self.own.machine.clone() };
        let client = self.client.as_caller(&identity);
        if known.len() >= MAX_IDENTITIES {
            known.clear();
        }
        known.insert(who, client.clone());
        client
    }
}

#[cfg(test)]
mod tests {
    use millrace_client::Options;
    use millrace_runtime::tokio_rt::TokioRuntime;
    use millrace_server::{Config, Server};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn mounting_user_gets_the_groups_of_the_thread() {
        let config = Config {
            exports: vec!["/data=memory:16MiB".parse().unwrap()],
            listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
            shards: Some(1),
            ..Config::default()
        };
        let server = Server::start(config).unwrap();
        let url = format!("nfs://{}/data?proto=tcp", server.tcp_addr().unwrap()).parse().unwrap();
        let rt = TokioRuntime::from_handle(tokio::runtime::Handle::current());
        let client = Client::connect(rt.clone(), &url, Options::default()).await.unwrap();
        let tid = std::process::id();
        let mut gids = Identity::groups_of(&tid.to_string());
        let own = Identity { uid: 4711, gid: 4712, gids: gids.clone(), machine: "machine".into() };
        let callers = CredentialCache::new(client.clone(), own.clone());
        assert!(
            callers.get(&rt, (4711, 4712), tid).await.is_same_caller(&client),
            "same groups as the mounting process"
        );
        gids.push(4713);
        let callers = CredentialCache::new(client.clone(), Identity { gids, ..own });
        let caller = callers.get(&rt, (4711, 4712), tid).await;
        assert!(!caller.is_same_caller(&client), "lacks a group of the mounting process");
        assert!(callers.get(&rt, (4711, 4712), tid).await.is_same_caller(&caller));
        assert!(!callers.get(&rt, (4711, 4713), tid).await.is_same_caller(&caller));
    }
}
