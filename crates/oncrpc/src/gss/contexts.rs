//! The established contexts of a server, for all connections and transports: rpc.gssd(8) of Linux establishes a context on
//! one connection, and the kernel uses it on others.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_admission::{ClientAddr, ClientQuota};
use millrace_krb5::Context;
use millrace_runtime::sync::Mutex;

use super::window::Window;
use crate::GssCaller;

/// Contexts of all clients, of some kilobytes each. The least recently used ones make room: their clients establish others.
const MAX_CONTEXTS: usize = 16_384;
/// Contexts of one user at one client. Linux has one for each protection.
const MAX_OF_USER: usize = 64;
/// Time between two removals of expired contexts.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);

/// Names a context in the calls of its client. It is random, and needs no protection beyond that: each call is
/// signed.
pub(super) type ContextHandle = [u8; 8];

/// An established context.
pub(crate) struct ServerContext {
    pub(super) handle: ContextHandle,
    pub(super) keys: Box<Context>,
    pub(super) caller: Arc<GssCaller>,
    pub(super) window: Mutex<Window>,
    client: ClientAddr,
    /// Time of the last call in seconds of the wall clock.
    used: AtomicU64,
    has_ended: AtomicBool,
}

impl fmt::Debug for ServerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerContext")
            .field("keys", &self.keys)
            .field("caller", &self.caller)
            .finish_non_exhaustive()
    }
}

impl ServerContext {
    pub(super) fn new(
        handle: ContextHandle,
        keys: Box<Context>,
        caller: GssCaller,
        client: ClientAddr,
        now: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            handle,
            keys,
            caller: Arc::new(caller),
            window: Mutex::default(),
            client,
            used: AtomicU64::new(now.as_secs()),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Whether calls may use the context at this time of the wall clock.
    pub(super) fn is_valid(&self, now: Duration) -> bool {
        !self.has_ended.load(Ordering::Relaxed) && now < self.keys.end()
    }

    /// Records a call.
    pub(super) fn touch(&self, now: Duration) {
        self.used.store(now.as_secs(), Ordering::Relaxed);
    }
}

/// The contexts of a server.
pub(crate) struct Contexts {
    table: Mutex<Table>,
    quota: ClientQuota,
}

#[derive(Default)]
struct Table {
    by_handle: HashMap<ContextHandle, Arc<ServerContext>>,
    by_client: HashMap<ClientAddr, Vec<Arc<ServerContext>>>,
    swept: Duration,
}

impl Default for Contexts {
    fn default() -> Self {
        Self { table: Mutex::default(), quota: ClientQuota::new(MAX_CONTEXTS) }
    }
}

impl Contexts {
    /// Number of contexts.
    pub(super) fn len(&self) -> usize {
        self.table.lock().by_handle.len()
    }

    /// The context with this handle.
    pub(super) fn find(&self, handle: &ContextHandle) -> Option<Arc<ServerContext>> {
        self.table.lock().by_handle.get(handle).cloned()
    }

    /// Adds a context, for which others of the user or of the client with most may be removed.
    pub(super) fn add(&self, context: &Arc<ServerContext>, now: Duration) {
        let client = context.client;
        let mut table = self.table.lock();
        if now.saturating_sub(table.swept) >= SWEEP_INTERVAL {
            table.swept = now;
            self.retain(&mut table, |context| context.is_valid(now));
        }
        let is_of_user = |other: &&Arc<ServerContext>| other.caller.principal == context.caller.principal;
        let of_client = table.by_client.get(&client).map_or(&[][..], Vec::as_slice);
        if of_client.iter().filter(is_of_user).count() >= MAX_OF_USER {
            let oldest = least_recently_used(of_client.iter().filter(is_of_user));
            oldest.iter().for_each(|oldest| self.remove_from(&mut table, oldest));
        }
        while !self.quota.take(client, 1) {
            let from = self.quota.heaviest(client, 1).unwrap_or(client);
            let of_client = table.by_client.get(&from).and_then(|of| least_recently_used(of.iter()));
            let oldest = of_client.or_else(|| least_recently_used(table.by_handle.values()));
            oldest.iter().for_each(|oldest| self.remove_from(&mut table, oldest));
        }
        table.by_handle.insert(context.handle, Arc::clone(context));
        table.by_client.entry(client).or_default().push(Arc::clone(context));
    }

    /// Removes a context. Its calls in progress are still answered.
    pub(super) fn remove(&self, context: &Arc<ServerContext>) {
        self.remove_from(&mut self.table.lock(), context);
    }

    fn remove_from(&self, table: &mut Table, context: &Arc<ServerContext>) {
        context.has_ended.store(true, Ordering::Relaxed);
        if table.by_handle.remove(&context.handle).is_none() {
            return;
        }
        if let Some(of_client) = table.by_client.get_mut(&context.client) {
            of_client.retain(|other| !Arc::ptr_eq(other, context));
            if of_client.is_empty() {
                table.by_client.remove(&context.client);
            }
        }
        self.quota.give_back(context.client, 1);
    }

    /// Removes all contexts.
    pub(super) fn clear(&self) {
        self.retain(&mut self.table.lock(), |_| false);
    }

    /// Removes many contexts: those that are not to be kept. Visits each one once, while others of a client may be many.
    fn retain(&self, table: &mut Table, keep: impl Fn(&ServerContext) -> bool) {
        let Table { by_handle, by_client, .. } = table;
        by_client.retain(|client, contexts| {
            let before = contexts.len();
            contexts.retain(|context| {
                let kept = keep(context);
                if !kept {
                    context.has_ended.store(true, Ordering::Relaxed);
                    by_handle.remove(&context.handle);
                }
                kept
            });
            self.quota.give_back(*client, before - contexts.len());
            !contexts.is_empty()
        });
    }
}

fn least_recently_used<'c>(
    contexts: impl Iterator<Item = &'c Arc<ServerContext>>,
) -> Option<Arc<ServerContext>> {
    contexts.min_by_key(|context| context.used.load(Ordering::Relaxed)).cloned()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use millrace_krb5::{Enctype, Parameters, Role};

    use super::*;

    /// A context until the time 1000.
    fn context(number: u64, user: &str, client: [u8; 4], now: u64) -> Arc<ServerContext> {
        context_until(1000, number, user, client, now)
    }

    fn context_until(end: u64, number: u64, user: &str, client: [u8; 4], now: u64) -> Arc<ServerContext> {
        let keys = Context::new(&Parameters {
            role: Role::Acceptor,
            enctype: Enctype::Aes128Sha1,
            key: &[1; 16],
            acceptor_subkey: false,
            sequence: 0,
            end: Duration::from_secs(end),
        });
        let caller = GssCaller { principal: user.into(), user: None };
        let (keys, now) = (Box::new(keys.unwrap()), Duration::from_secs(now));
        ServerContext::new(number.to_be_bytes(), keys, caller, IpAddr::from(client).into(), now)
    }

    #[test]
    fn a_user_has_a_limited_number_at_each_client_and_loses_the_least_recently_used() {
        let contexts = Contexts::default();
        let now = Duration::from_secs(500);
        let of = |n, user, client| {
            let context = context(n, user, client, n);
            contexts.add(&context, now);
            context
        };
        let first = of(0, "a", [10, 0, 0, 1]);
        let second = of(1, "a", [10, 0, 0, 1]);
        first.touch(now);
        let other_user = of(2, "b", [10, 0, 0, 1]);
        let elsewhere = of(3, "a", [10, 0, 0, 2]);
        let _others: Vec<_> = (4..2 + MAX_OF_USER as u64 + 1).map(|n| of(n, "a", [10, 0, 0, 1])).collect();
        assert_eq!(contexts.len(), MAX_OF_USER + 2);
        assert!(
            [&first, &other_user, &elsewhere]
                .iter()
                .all(|c| contexts.find(&c.handle).is_some() && c.is_valid(now))
        );
        assert!(contexts.find(&second.handle).is_none() && !second.is_valid(now));
    }

    #[test]
    fn expired_contexts_are_removed_and_others_stay() {
        let contexts = Contexts::default();
        let (old, now) = (context(1, "a", [10, 0, 0, 1], 0), Duration::from_secs(1000));
        contexts.add(&old, Duration::from_secs(999));
        assert!(old.is_valid(Duration::from_secs(999)) && !old.is_valid(now));
        let lasting = context_until(9000, 2, "a", [10, 0, 0, 1], 0);
        contexts.add(&lasting, now);
        contexts.add(&context(3, "a", [10, 0, 0, 1], 0), now + SWEEP_INTERVAL);
        assert!(contexts.find(&old.handle).is_none() && contexts.find(&lasting.handle).is_some());
        assert_eq!(contexts.quota.of(IpAddr::from([10, 0, 0, 1]).into()), 2);
        contexts.clear();
        assert_eq!((contexts.len(), contexts.quota.left()), (0, MAX_CONTEXTS));
    }

    #[test]
    fn a_client_with_most_makes_room_for_others() {
        let contexts = Contexts::default();
        let now = Duration::from_secs(500);
        for n in 0..MAX_CONTEXTS as u64 {
            contexts.add(&context(n, &n.to_string(), [10, 0, 0, 1], n), now);
        }
        let taken = contexts.len();
        assert!(taken < MAX_CONTEXTS, "one client does not take all");
        for n in 0..MAX_CONTEXTS as u64 {
            let number = n + MAX_CONTEXTS as u64;
            contexts.add(&context(number, "b", [10, 1, (n >> 8) as u8, n as u8], n), now);
        }
        let left = contexts.quota.of(IpAddr::from([10, 0, 0, 1]).into());
        assert!(contexts.len() <= MAX_CONTEXTS && left < 10, "{left} of {taken}");
    }
}
