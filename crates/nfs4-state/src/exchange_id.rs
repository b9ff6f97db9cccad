//! EXCHANGE_ID (RFC 8881, 18.35).

use std::{sync::Arc, time::Duration};

use millrace_nfs::v4::Status;

use crate::{
    client::Client,
    heap::Heap,
    identify::{ClientIdentified, ExchangeId},
    records::Record,
    state::State,
};

impl<R: Clone> State<R> {
    /// EXCHANGE_ID. Returns the confirmed record of the client, or creates an unconfirmed one, which CREATE_SESSION
    /// confirms. State that the client has is kept until then.
    ///
    /// # Errors
    /// CLID_INUSE if a client with the same `owner`, another `principal`, and state has an unexpired lease. NOENT,
    /// NOT_SAME or PERM if there is no confirmed record to update, or one with another `verifier` or `principal`.
    /// WRONG_CRED if the record has SP4_MACH_CRED, and the call is not protected or updates that of another principal.
    /// DELAY while a client with the same `owner`, another `principal`, and state is removed.
    pub fn exchange_id(&self, args: &ExchangeId<'_>, now: Duration) -> Result<ClientIdentified, Status> {
        let mut records = self.records.lock();
        // A client that is being removed does not count: CREATE_SESSION replaces it.
        let confirmed = records.confirmed(args.owner).filter(|record| !record.client.is_removed());
        if let Some(record) = confirmed {
            let same_principal = *record.principal == *args.principal;
            let same_verifier = record.verifier == args.verifier;
            // The numbers are those of the cases in RFC 8881, 18.35.4.
            let machine = record.client.check_machine(args.principal, args.is_protected);
            match (args.update, same_principal, same_verifier) {
                (true, _, _) | (_, true, _) if machine.is_err() => return Err(Status::WrongCred),
                (true, false, _) => return Err(Status::Perm), // 9
                (true, true, false) => return Err(Status::NotSame), // 8
                (_, true, true) => return Ok(record.identified(true)), // 2 and 6
                (false, true, false) => {}                    // 5
                // 3
                (false, false, _) => {
                    let client = record.client.clone();
                    let idle = record.sessions.is_empty() && client.table.lock().is_empty();
                    let ended = if idle {
                        client.lease.end_if_idle()
                    } else {
                        client.lease.end_if_expired(now, self.limits.lease)
                    };
                    if !ended {
                        return Err(Status::ClidInuse);
                    }
                    let has_lost = !client.table.lock().is_empty() || self.in_grace();
                    let removed = self.remove_unlisted(&mut records, client.id(), now);
                    // One without state loses nothing that it could reclaim, so that its place on the list is that of
                    // the new client, or `expire` removes it.
                    if has_lost {
                        removed?;
                    }
                }
            }
        } else if args.update {
            return Err(Status::NoEnt); // 7
        }
        // 1 and 4, or one of the above.
        let id = records.new_id(&self.identity);
        let heap = Heap::new(&self.heap, args.address.into(), &self.candidates, id.1);
        let record = Record {
            client: Arc::new(Client::new(id, args, heap, now)),
            verifier: args.verifier,
            principal: args.principal.into(),
            address: args.address,
            sequence: 1,
            created: None,
            sessions: Vec::new(),
        };
        let identified = record.identified(false);
        records.add(record, self.limits.unconfirmed_per_address, self.limits.unconfirmed);
        Ok(identified)
    }
}
