//! Callbacks of recalls and their results (RFC 8881, 20.2, 20.6).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    client::Client,
    delegation::Notice,
    recalls::{DelegationStats, Recall, RecallAny},
    state::State,
    table::stateid,
};

/// Time between two CB_RECALL_ANY to a client.
const ASK_INTERVAL: Duration = Duration::from_secs(10);

impl<R: Clone> State<R> {
    /// Takes the recalls to send. This costs one load of an atomic variable if there are none. The server calls
    /// [`recall_answered`](Self::recall_answered) for each.
    pub fn take_recalls(&self) -> Vec<Recall> {
        self.delegating.recalls.take()
    }

    /// The result of CB_RECALL. If the client has not accepted it, the next conflicting request repeats it.
    pub fn recall_answered(&self, recall: &Recall, accepted: bool) {
        self.files.update(&recall.file, |file, _| {
            let Some(held) = file.delegations.get_mut(recall.client) else { return };
            if recall.stateid == stateid(recall.client, held.number, 1)
                && let Some(recalled) = &mut held.recalled
            {
                recalled.notice = if accepted { Notice::Accepted } else { Notice::Failed };
            }
        });
    }

    /// Whether a delegation is held: its recall need not be repeated otherwise.
    pub fn is_recalled(&self, recall: &Recall) -> bool {
        let held = self.files.read(&recall.file, |file| {
            let held = file.delegations.get(recall.client);
            held.is_some_and(|held| recall.stateid == stateid(recall.client, held.number, 1))
        });
        held.unwrap_or(false)
    }

    /// Clients that should return delegations, because `client`, which has just got one, or all clients together
    /// hold three quarters of their limit. The server sends CB_RECALL_ANY to each.
    pub fn take_recalls_of_any(&self, client: &Arc<Client>, now: Duration) -> Vec<RecallAny> {
        let (limits, mut asked) = (&self.limits, Vec::new());
        let held = |client: &Client| client.delegations.load(Ordering::Relaxed);
        if held(client) > limits.delegations_per_client / 4 * 3 {
            asked.extend(ask(client, limits.delegations_per_client / 2, now));
        }
        if self.delegating.held() >= limits.delegations / 4 * 3 {
            let holders = self.delegating.holders.load(Ordering::Relaxed).max(1);
            let share = limits.delegations / 2 / holders;
            let records = self.records.lock();
            // The next call asks the next clients.
            let page = records.page(&mut self.delegating.asked.lock());
            let many = page.into_iter().filter(|client| held(client) > share);
            asked.extend(many.filter_map(|client| ask(client, share, now)));
        }
        asked
    }

    /// Numbers of delegations.
    pub fn delegation_stats(&self) -> DelegationStats {
        let recalls = &self.delegating.recalls;
        DelegationStats {
            held: self.delegating.held() as u64,
            recalled: recalls.recalled.load(Ordering::Relaxed),
            revoked: recalls.revoked.load(Ordering::Relaxed),
        }
    }
}

/// The request to a client to keep only some of its delegations, unless one was sent a short time ago.
fn ask(client: &Client, keep: usize, now: Duration) -> Option<RecallAny> {
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX).max(1);
    let interval = ASK_INTERVAL.as_millis() as u64;
    let due = |last: u64| (last == 0 || now.saturating_sub(last) >= interval).then_some(now);
    client.asked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).ok()?;
    Some(RecallAny { client: client.id(), keep: u32::try_from(keep).unwrap_or(u32::MAX) })
}
