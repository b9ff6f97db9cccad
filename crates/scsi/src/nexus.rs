//! I_T nexuses, and their state at one logical unit.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use parking_lot::Mutex;

use crate::{
    attention::{Attentions, UnitAttention},
    reservation::InitiatorPort,
};

/// The relation between an initiator port and the target port: a session. It ends with
/// [`Target::close_nexus`](crate::Target::close_nexus).
#[derive(Debug)]
pub struct Nexus {
    id: u64,
    initiator: InitiatorPort,
}

impl Nexus {
    pub(crate) fn new(initiator: InitiatorPort) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self { id: NEXT.fetch_add(1, Ordering::Relaxed), initiator })
    }

    /// A number that no other nexus of the process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The initiator port.
    pub fn initiator(&self) -> &InitiatorPort {
        &self.initiator
    }
}

/// A nexus at a logical unit (I_T_L nexus).
#[derive(Debug)]
pub(crate) struct UnitNexus {
    pub(crate) nexus: Arc<Nexus>,
    attentions: Mutex<Attentions>,
    /// Number of tasks from arrival to completion.
    tasks: AtomicUsize,
    /// Number of times that all tasks were aborted.
    generation: AtomicU64,
    /// Number of losses of unstable data that the nexus was informed of.
    losses: AtomicU64,
    reported: Mutex<Reported>,
}

/// The conditions that were reported in sense data which the initiator may not have received.
#[derive(Debug, Default)]
struct Reported {
    attentions: Attentions,
    /// The number of losses that the initiator had acknowledged before others were reported.
    losses: Option<u64>,
}

impl UnitNexus {
    /// A new nexus with pending conditions. Losses after the first `losses` are to be reported to it.
    pub(crate) fn new(nexus: Arc<Nexus>, pending: Attentions, losses: u64) -> Self {
        Self {
            nexus,
            attentions: Mutex::new(pending),
            tasks: AtomicUsize::new(0),
            generation: AtomicU64::new(0),
            losses: AtomicU64::new(losses),
            reported: Mutex::default(),
        }
    }

    pub(crate) fn raise(&self, attention: UnitAttention) {
        self.attentions.lock().raise(attention);
    }

    pub(crate) fn clear(&self, attention: UnitAttention) {
        self.attentions.lock().clear(attention);
    }

    /// The conditions that the initiator may not have received, and the number of losses whose report it has
    /// received.
    pub(crate) fn unknown(&self) -> (Attentions, u64) {
        let reported = self.reported.lock();
        let pending = self.attentions.lock().with(reported.attentions);
        (pending, reported.losses.unwrap_or_else(|| self.losses.load(Ordering::Acquire)))
    }

    /// Takes the condition to report next.
    pub(crate) fn take_attention(&self) -> Option<UnitAttention> {
        let taken = self.attentions.lock().take()?;
        self.reported.lock().attentions.raise(taken);
        Some(taken)
    }

    /// The initiator has received all that was reported.
    pub(crate) fn received(&self) {
        *self.reported.lock() = Reported::default();
    }

    /// Aborts all tasks; returns whether there were any.
    pub(crate) fn abort(&self) -> bool {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.tasks.load(Ordering::Acquire) > 0
    }

    /// Whether no data was lost since the nexus was last informed; it is informed now of `losses`.
    pub(crate) fn is_informed_of(&self, losses: u64) -> bool {
        let known = self.losses.swap(losses, Ordering::AcqRel);
        if known != losses {
            self.reported.lock().losses.get_or_insert(known);
        }
        known == losses
    }
}

/// Counts a task of a nexus at a logical unit, and returns whether it was aborted.
#[derive(Debug)]
pub(crate) struct TaskGuard {
    pub(crate) nexus: Arc<UnitNexus>,
    generation: u64,
}

impl TaskGuard {
    pub(crate) fn new(nexus: Arc<UnitNexus>) -> Self {
        nexus.tasks.fetch_add(1, Ordering::AcqRel);
        let generation = nexus.generation.load(Ordering::Acquire);
        Self { nexus, generation }
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.nexus.generation.load(Ordering::Acquire) != self.generation
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.nexus.tasks.fetch_sub(1, Ordering::AcqRel);
    }
}
