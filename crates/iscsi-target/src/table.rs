//! The targets of a server and their sessions.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::Context,
};

use arc_swap::ArcSwap;
use futures::{channel::oneshot, task::AtomicWaker};
use millrace_iscsi::{
    discovery::{DiscoveredTarget, SendTargets},
    name::{IscsiName, TargetAddress},
    session::{Admission, LoginPermit, Nexus, Refusal, Registry, RegistryLimits},
};
use parking_lot::Mutex;

use crate::{
    config::{TableLimits, TargetConfig},
    linger::EndingStreams,
};

/// Two targets have the same name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("two targets have the name {0}; give each target its own name")]
pub struct DuplicateTarget(pub IscsiName);

/// An order to the task of a session, in ascending urgency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Order {
    /// Serve.
    Serve,
    /// Request a logout, and end after its time limit.
    LogOut,
    /// End at once: the initiator reinstates the session.
    End,
}

/// The part of a session that other tasks access.
#[derive(Debug)]
pub(crate) struct Control {
    order: AtomicU8,
    task: AtomicWaker,
    /// Completes when the session has ended.
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Control {
    /// A session, whose end is when the sender is dropped.
    fn new() -> (Arc<Self>, oneshot::Sender<()>) {
        let (sender, receiver) = oneshot::channel();
        let (order, task) = (AtomicU8::new(Order::Serve as u8), AtomicWaker::new());
        (Arc::new(Self { order, task, ended: Mutex::new(Some(receiver)) }), sender)
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

/// A registered session. Dropping it removes the session from the table and lets a reinstating login continue.
pub(crate) struct Session {
    table: Arc<TargetTable>,
    pub(crate) tsih: u16,
    pub(crate) control: Arc<Control>,
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
    pub(crate) ending_streams: EndingStreams,
}

impl TargetTable {
    /// A table without targets.
    pub fn new(limits: TableLimits) -> Arc<Self> {
        let TableLimits { sessions, sessions_per_initiator, logins } = limits;
        let limits = RegistryLimits { sessions, sessions_per_initiator, logins };
        let sessions = Mutex::new(Registry::new(limits));
        Arc::new(Self { targets: ArcSwap::default(), sessions, ending_streams: EndingStreams::default() })
    }

    /// Replaces the targets. The sessions of targets that are removed, or have another device, are requested to log
    /// out. Credentials and permitted initiators apply to new logins.
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

    pub(crate) fn start_login(&self) -> Option<LoginPermit> {
        self.sessions.lock().start_login()
    }

    /// Registers an authenticated session. A session with the same nexus is ordered to end; the caller waits for
    /// that ([`Session::predecessor`]).
    pub(crate) fn register(self: &Arc<Self>, nexus: Nexus) -> Result<Session, Refusal> {
        let mut sessions = self.sessions.lock();
        let mut predecessor = None;
        if let Admission::Reinstate { tsih, session } = sessions.admit(&nexus, 0)? {
            session.give(Order::End);
            predecessor = session.ended.lock().take();
            sessions.remove(tsih);
        }
        let (control, ended) = Control::new();
        let tsih = sessions.insert(nexus, Arc::clone(&control))?;
        Ok(Session { table: Arc::clone(self), tsih, control, _ended: ended, predecessor })
    }

    /// The answer to `request` of `initiator`, in a discovery session if `session` is `None`. `local` is the address
    /// of the connection.
    pub(crate) fn discover(
        &self,
        request: &SendTargets,
        initiator: &IscsiName,
        session: Option<&IscsiName>,
        local: &TargetAddress,
    ) -> Vec<DiscoveredTarget> {
        let asked = |name: &IscsiName| match (request, session) {
            (SendTargets::All, None) => true,
            (SendTargets::Name(asked), None) => asked == name,
            (SendTargets::Name(asked), Some(session)) => asked == name && session == name,
            (SendTargets::Session, Some(session)) => session == name,
            (SendTargets::Session, None) | (SendTargets::All, Some(_)) => false,
        };
        let targets = self.targets.load();
        let found = targets.values().filter(|t| asked(&t.name) && t.permits(initiator));
        found
            .map(|target| DiscoveredTarget {
                name: target.name.clone(),
                addresses: match target.addresses.as_slice() {
                    [] => vec![local.clone()],
                    addresses => addresses.to_vec(),
                },
            })
            .collect()
    }
}
