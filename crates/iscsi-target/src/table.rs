//! The targets of a server and their sessions.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    task::Context,
};

use arc_swap::ArcSwap;
use futures::{channel::oneshot, task::AtomicWaker};
use millrace_admission::{ClientAddr, ClientQuota};
use millrace_iscsi::{
    discovery::{self, DiscoveredTarget, SendTargets},
    name::{IscsiName, TargetAddress},
    session::{Admission, Nexus, Refusal, Registry},
};
use millrace_runtime::Instant;
use millrace_tls::TransportSecurity;
use parking_lot::Mutex;

use crate::{
    config::{TableLimits, TargetConfig},
    linger::EndingStreams,
};

/// Bytes of text above which an answer to SendTargets is divided.
pub(crate) const MAX_ANSWER: usize = 8192;

/// Two targets have the same name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("two targets have the name {0}; give each target its own name")]
pub struct DuplicateTarget(pub IscsiName);

/// An order to the task of a connection, in ascending urgency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Order {
    /// Serve.
    Serve,
    /// Request a logout, and end after its time limit.
    LogOut,
    /// End at once: the initiator reinstates the session, another client needs its place, or the target wants more protection.
    End,
}

/// The part of a connection that other tasks access, from the beginning of its login.
#[derive(Debug)]
pub(crate) struct Control {
    /// Identifies the connection, in ascending order.
    number: u64,
    client: ClientAddr,
    security: TransportSecurity,
    /// Time of the last command, or of the beginning of the login.
    last_use: AtomicU64,
    order: AtomicU8,
    task: AtomicWaker,
    /// Completes when the session has ended.
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Control {
    fn new(number: u64, client: ClientAddr, security: TransportSecurity, now: Instant) -> Arc<Self> {
        Arc::new(Self {
            number,
            client,
            security,
            last_use: AtomicU64::new(now.as_nanos()),
            order: AtomicU8::new(Order::Serve as u8),
            task: AtomicWaker::new(),
            ended: Mutex::default(),
        })
    }

    /// Records a command at `now`, which is returned.
    pub(crate) fn touch(&self, now: Instant) -> Instant {
        self.last_use.store(now.as_nanos(), Ordering::Relaxed);
        now
    }

    fn give(&self, order: Order) {
        self.order.fetch_max(order as u8, Ordering::AcqRel);
        self.task.wake();
    }

    /// The most urgent order so far; a later one wakes the task.
    pub(crate) fn order(&self, cx: &Context<'_>) -> Order {
        self.task.register(cx.waker());
        match self.order.load(Ordering::Acquire) {
            0 => Order::Serve,
            1 => Order::LogOut,
            _ => Order::End,
        }
    }
}

/// A limited number of connections, divided among the clients.
struct Places {
    quota: ClientQuota,
    taken: Mutex<BTreeMap<u64, Arc<Control>>>,
}

impl Places {
    fn new(limit: u16) -> Arc<Self> {
        Arc::new(Self { quota: ClientQuota::new(limit.into()), taken: Mutex::default() })
    }

    /// Takes a place for a connection: that of `old`, which it replaces, if it is one of the same client. If others have left
    /// the client too little, the one with most loses the connection that has been idle longest. `None` if there is no
    /// such client.
    fn take(self: &Arc<Self>, control: &Arc<Control>, old: Option<&Control>) -> Option<Place> {
        let mut taken = self.taken.lock();
        let own = old.filter(|old| old.client == control.client);
        let inherits = own.is_some_and(|old| taken.remove(&old.number).is_some());
        if !inherits && !self.quota.take(control.client, 1) {
            let heaviest = self.quota.heaviest(control.client, 1)?;
            let of_heaviest = taken.values().filter(|c| c.client == heaviest);
            let idle = of_heaviest.min_by_key(|c| c.last_use.load(Ordering::Relaxed)).cloned()?;
            taken.remove(&idle.number);
            self.quota.give_back(heaviest, 1);
            self.quota.add(control.client, 1);
            idle.give(Order::End);
        }
        taken.insert(control.number, Arc::clone(control));
        Some(Place { of: Arc::clone(self), number: control.number })
    }
}

/// The place of a connection, until it is dropped or another connection gets it.
struct Place {
    of: Arc<Places>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock();
        if let Some(control) = taken.remove(&self.number) {
            self.of.quota.give_back(control.client, 1);
        }
    }
}

/// A connection that counts as a login: it is in the login phase, or has a discovery session.
pub(crate) struct Login {
    pub(crate) control: Arc<Control>,
    _place: Place,
}

/// A registered session. Dropping it removes the session from the table and lets a reinstating login continue.
pub(crate) struct Session {
    table: Arc<TargetTable>,
    pub(crate) tsih: u16,
    pub(crate) control: Arc<Control>,
    /// `None` for a discovery session.
    _place: Option<Place>,
    _ended: oneshot::Sender<()>,
    /// Completes when the session that this one reinstates has ended.
    pub(crate) predecessor: Option<oneshot::Receiver<()>>,
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut sessions = self.table.sessions.lock();
        // A reinstated session is removed already, and its number may have another owner.
        let own = sessions.iter().any(|(_, _, control)| Arc::ptr_eq(control, &self.control));
        if own {
            sessions.remove(self.tsih);
        }
    }
}

/// The targets of a server. They are replaced while the server runs.
pub struct TargetTable {
    targets: ArcSwap<BTreeMap<IscsiName, TargetConfig>>,
    sessions: Mutex<Registry<Arc<Control>>>,
    /// Places of logins and discovery sessions.
    logins: Arc<Places>,
    /// Places of other sessions.
    places: Arc<Places>,
    /// Number of connections so far.
    connections: AtomicU64,
    pub(crate) ending_streams: EndingStreams,
}

impl TargetTable {
    /// A table without targets.
    pub fn new(limits: TableLimits) -> Arc<Self> {
        Arc::new(Self {
            targets: ArcSwap::default(),
            sessions: Mutex::default(),
            logins: Places::new(limits.logins),
            places: Places::new(limits.sessions),
            connections: AtomicU64::new(0),
            ending_streams: EndingStreams::default(),
        })
    }

    /// Replaces the targets. The sessions of targets that are removed, or have another device, are requested to log
    /// out. Those with less protection than their target wants end at once. Credentials and permitted initiators apply to new logins.
    ///
    /// # Errors
    /// Two targets have the same name; nothing changes.
    pub fn replace(&self, targets: Vec<TargetConfig>) -> Result<(), DuplicateTarget> {
        let mut new = BTreeMap::new();
        for target in targets {
            if let Some(double) = new.insert(target.name.clone(), target) {
                return Err(DuplicateTarget(double.name));
            }
        }
        let sessions = self.sessions.lock();
        let new = Arc::new(new);
        let old = self.targets.swap(Arc::clone(&new));
        for (_, nexus, control) in sessions.iter() {
            let Some(name) = &nexus.target else { continue };
            let kept = match (old.get(name), new.get(name)) {
                (Some(old), Some(new)) => Arc::ptr_eq(&old.device, &new.device),
                _ => false,
            };
            if !kept {
                control.give(Order::LogOut);
            }
            if new.get(name).is_some_and(|new| control.security < new.xprtsec) {
                control.give(Order::End);
            }
        }
        Ok(())
    }

    /// Number of sessions, including discovery sessions.
    pub fn sessions(&self) -> usize {
        self.sessions.lock().iter().count()
    }

    pub(crate) fn target(&self, name: &IscsiName) -> Option<TargetConfig> {
        self.targets.load().get(name).cloned()
    }

    /// A connection of `client` with this protection begins its login phase. `None` if too many are in it.
    pub(crate) fn start_login(
        &self,
        client: ClientAddr,
        security: TransportSecurity,
        now: Instant,
    ) -> Option<Login> {
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        let control = Control::new(number, client, security, now);
        let place = self.logins.take(&control, None)?;
        Some(Login { control, _place: place })
    }

    /// Registers an authenticated session. A session with the same nexus is ordered to end; the caller waits for
    /// that ([`Session::predecessor`]).
    pub(crate) fn register(
        self: &Arc<Self>,
        nexus: Nexus,
        control: &Arc<Control>,
    ) -> Result<Session, Refusal> {
        let mut sessions = self.sessions.lock();
        let old = match sessions.admit(&nexus, 0)? {
            Admission::Reinstate { tsih, session } => Some((tsih, Arc::clone(session))),
            Admission::New => None,
        };
        let replaced = old.as_ref().map(|(_, old)| &**old);
        let place = match nexus.target {
            Some(_) => Some(self.places.take(control, replaced).ok_or(Refusal::Sessions)?),
            None => None,
        };
        let predecessor = old.and_then(|(tsih, old)| {
            old.give(Order::End);
            sessions.remove(tsih);
            old.ended.lock().take()
        });
        let (sender, receiver) = oneshot::channel();
        *control.ended.lock() = Some(receiver);
        let tsih = sessions.insert(nexus, Arc::clone(control))?;
        let (table, control) = (Arc::clone(self), Arc::clone(control));
        Ok(Session { table, tsih, control, _place: place, _ended: sender, predecessor })
    }

    /// The text of the answer to `request` of `initiator` over a connection with this protection, in a discovery session if `session` is `None`. `local` is the
    /// address of the connection. A long answer ends after [`MAX_ANSWER`] bytes and the target that exceeds them, whose
    /// name is returned: the rest of the answer has the targets `after` it.
    pub(crate) fn discover(
        &self,
        request: &SendTargets,
        after: Option<&IscsiName>,
        initiator: &IscsiName,
        security: TransportSecurity,
        session: Option<&IscsiName>,
        local: &TargetAddress,
    ) -> (Vec<u8>, Option<IscsiName>) {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let all = (from, Bound::Unbounded);
        let one = |name| (Bound::Included(name), Bound::Included(name));
        let asked = match (request, session) {
            (SendTargets::All, None) => all,
            (SendTargets::Name(asked), None) => one(asked),
            (SendTargets::Name(asked), Some(session)) if asked == session => one(asked),
            (SendTargets::Session, Some(session)) => one(session),
            _ => return (Vec::new(), None),
        };
        let targets = self.targets.load();
        let mut text = Vec::new();
        let mut last: Option<&IscsiName> = None;
        let permitted = |(_, t): &(&IscsiName, &TargetConfig)| t.permits(initiator, security);
        for (name, target) in targets.range::<IscsiName, _>(asked).filter(permitted) {
            if text.len() >= MAX_ANSWER {
                return (text, last.cloned());
            }
            let addresses = match target.addresses.as_slice() {
                [] => vec![local.clone()],
                addresses => addresses.to_vec(),
            };
            text.extend(discovery::encode(&[DiscoveredTarget { name: name.clone(), addresses }]));
            last = Some(name);
        }
        (text, None)
    }
}
