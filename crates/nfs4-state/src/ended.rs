//! Removal of the state of clients that have ended, in steps.
//!
//! A client without much state is removed with all of it at once. The rest of a large one waits, and each request that may
//! conflict with it or need its heap does a step, as does [`State::expire`]. A request that conflicts with it gets DELAY.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    client::Client,
    heap::RANGE,
    state::State,
    table::{Entry, Kind, Table},
    visits::{STEP, count_visits},
};

impl<R: Clone> State<R> {
    /// Ends the state of a client that is removed. [`clear_ended`](Self::clear_ended) removes it.
    pub(crate) fn end_state(&self, client: &Arc<Client>) {
        let mut own = client.table.lock();
        let table = own.end();
        if !table.is_empty() {
            client.has_rest.store(true, Ordering::Release);
            self.push_rest(Arc::clone(client), table);
        }
    }

    /// Whether clients that have ended may have state.
    pub(crate) fn has_rests(&self) -> bool {
        self.any_rest.load(Ordering::Acquire)
    }

    fn push_rest(&self, client: Arc<Client>, table: Table) {
        self.rests.lock().push_back((client, table));
        self.any_rest.store(true, Ordering::Release);
    }

    fn pop_rest(&self) -> Option<(Arc<Client>, Table)> {
        if !self.has_rests() {
            return None; // The common case, without a lock.
        }
        let mut rests = self.rests.lock();
        let rest = rests.pop_front();
        self.any_rest.store(!rests.is_empty(), Ordering::Release);
        rest
    }

    /// Removes state of clients that have ended: all of it, or as much as a step permits.
    pub(crate) fn clear_ended(&self, now: Duration) {
        let mut visits = 0;
        while visits < STEP
            && let Some((client, mut table)) = self.pop_rest()
        {
            while visits < STEP
                && let Some((number, entry)) = table.first()
            {
                visits += 1;
                if !entry.revoked {
                    let (unlocked, waiting) = self.end_in_file(&client, number, entry, now);
                    client.heap.give_back(unlocked * RANGE);
                    visits += unlocked + waiting;
                }
                table.remove(number);
            }
            if table.is_empty() {
                client.has_rest.store(false, Ordering::Release);
            } else {
                self.push_rest(client, table);
            }
        }
    }

    /// Ends what a stateid permits in its file. Returns the number of ranges that it had locked, and of requests that
    /// waited for locks.
    pub(crate) fn end_in_file(
        &self,
        client: &Arc<Client>,
        number: u32,
        entry: &Entry,
        now: Duration,
    ) -> (usize, usize) {
        count_visits(1);
        self.files.update(&entry.file, |file, key| {
            let unlocked = match entry.kind {
                Kind::Open { .. } => {
                    file.set_open(client, number, None);
                    file.locks.end_waiting_of(client, number);
                    0
                }
                Kind::Locks(_) => file.locks.remove(client, number),
                Kind::Delegation(_) => {
                    self.end_delegation(file, key, client, now);
                    0
                }
            };
            // Nothing is available otherwise.
            let waiting = if unlocked > 0 { file.locks.waiting() } else { 0 };
            if waiting > 0 {
                self.notify(file.locks.available(key));
            }
            (unlocked, waiting)
        })
    }
}
