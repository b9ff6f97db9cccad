//! CREATE_SESSION (RFC 8881, 18.36).

use std::{sync::Arc, time::Duration};

use millrace_nfs::v4::{ClientId, Status};

use crate::{
    back_channel::BackChannel,
    candidates::ANY,
    eviction::Scarce,
    identify::{CreateSession, SessionCreated},
    records::Records,
    session::Session,
    state::State,
};

impl<R: Clone> State<R> {
    /// CREATE_SESSION. The first one of a client record confirms it, and removes the client's earlier incarnation with
    /// all its state. A request with the sequence number of the last one gets the same result.
    ///
    /// # Errors
    /// STALE_CLIENTID, SEQ_MISORDERED; CLID_INUSE if another principal confirms the client; TOOSMALL or INVAL for
    /// channels without room for a COMPOUND or without slots; NOSPC if the client has too many sessions; DELAY if the
    /// server has too many clients or no room for replies, or while requests of the earlier incarnation are in progress.
    /// NOSPC consumes the sequence number, as the Linux client expects; the others do not.
    pub fn create_session(&self, args: &CreateSession<'_>, now: Duration) -> Result<SessionCreated, Status> {
        let mut records = self.records.lock();
        let confirmed = records.is_confirmed(args.client);
        let record = records.get_mut(args.client).ok_or(Status::StaleClientid)?;
        if args.sequence == record.sequence.wrapping_sub(1) {
            return record.created.unwrap_or(Err(Status::SeqMisordered));
        }
        if args.sequence != record.sequence {
            return Err(Status::SeqMisordered);
        }
        // Later sessions may have another principal and come from another address (RFC 8881, 18.36.4 and 2.10.5; Linux's
        // server permits both, too): the client ID, which is random, shows that the caller is the client.
        if !confirmed && *record.principal != *args.principal {
            return Err(Status::ClidInuse);
        }
        let result = self.new_session(&mut records, args, now);
        if matches!(result, Ok(_) | Err(Status::NoSpc))
            && let Some(record) = records.get_mut(args.client)
        {
            record.sequence = record.sequence.wrapping_add(1);
            record.created = Some(result);
        }
        result
    }

    fn new_session(
        &self,
        records: &mut Records,
        args: &CreateSession<'_>,
        now: Duration,
    ) -> Result<SessionCreated, Status> {
        let record = records.get_mut(args.client).ok_or(Status::StaleClientid)?;
        let room = self.replies.room(record.client.address(), record.sessions.is_empty());
        let fore = args.fore.fore(&self.limits, room)?;
        // BIND_CONN_TO_SESSION may add a connection for callbacks later.
        let has_back = self.limits.back_channel;
        let back = if has_back { args.back.back()? } else { args.back };
        let granted = args.back_channel && has_back;
        if record.sessions.len() >= self.limits.sessions_per_client {
            return Err(Status::NoSpc);
        }
        if !records.is_confirmed(args.client) {
            self.confirm(records, args.client, now)?;
        }
        let client = Arc::clone(records.client(args.client).ok_or(Status::StaleClientid)?);
        if !client.lease.renew(now) {
            return Err(Status::StaleClientid);
        }
        let session_id = |number| self.session_id(args.client, number);
        let id = records.add_session(args.client, session_id).ok_or(Status::StaleClientid)?;
        let wanted = args.fore.slots.min(self.limits.slots);
        let channel = has_back.then(|| BackChannel::new(id, back, granted));
        let session = Session::new(id, client.clone(), (fore, wanted), channel, &self.replies);
        self.sessions.write().insert(id, Arc::new(session));
        if fore.slots < wanted {
            self.ask_for_slots(records, client.address(), fore.kept(1), now);
        }
        Ok(SessionCreated { session: id, sequence: args.sequence, back_channel: granted, fore, back })
    }

    /// Removes the earlier incarnation of the client, or else another client if there are too many, and confirms the
    /// record.
    fn confirm(&self, records: &mut Records, id: ClientId, now: Duration) -> Result<(), Status> {
        let Some(record) = records.get_mut(id) else { return Err(Status::StaleClientid) };
        let client = record.client.clone();
        let earlier = records.confirmed(client.owner()).map(|record| record.client.clone());
        if let Some(earlier) = earlier {
            // A client whose lease has ended may not have been informed yet, and could reclaim its state after a
            // restart, unless it leaves the list first. A client with another verifier has lost its state.
            let lost = earlier.is_removed() && !earlier.table.lock().is_empty();
            // Requests of the earlier incarnation must not be executed after those of the new one.
            if lost || !earlier.lease.end_if_idle() {
                return Err(Status::Delay);
            }
            // The list keeps the owner, which is that of the new incarnation.
            self.remove_ended(records, earlier.id(), now);
        } else {
            self.make_room(records, id, now)?;
        }
        records.confirm(id);
        Ok(())
    }

    /// Removes another client if there are too many.
    fn make_room(&self, records: &mut Records, id: ClientId, now: Duration) -> Result<(), Status> {
        let address = records.get_mut(id).ok_or(Status::StaleClientid)?.client.address();
        if self.clients.permits(address, 1) {
            return Ok(());
        }
        self.evict(records, &Scarce { quota: &self.clients, address, items: 1, weights: ANY }, now)
    }
}
