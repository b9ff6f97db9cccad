//! Removal of the clients that have ended from the durable list. Requests that arrive during a write share the next one,
//! so that many clients that end together cost few writes.

use std::{mem, sync::Arc};

use futures::channel::oneshot;
use millrace_runtime::{RuntimeRef, sync::Mutex};

use super::{Clients, now};

/// The requests that wait for a write of the list.
#[derive(Default)]
pub(super) struct Ends(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// Whether a thread writes, which also does so for the requests that arrive meanwhile.
    writing: bool,
    requests: Vec<oneshot::Sender<()>>,
}

impl Ends {
    /// Returns after a write of the list of `clients`, whose ends are these, that began after this call. If it fails,
    /// [`Clients::maintain`] repeats it.
    pub(super) async fn written(&self, clients: &Arc<Clients>, rt: &RuntimeRef) {
        let (written, result) = oneshot::channel();
        let starts = {
            let mut waiting = self.0.lock();
            waiting.requests.push(written);
            !mem::replace(&mut waiting.writing, true)
        };
        if starts {
            let mut writer = Writer { clients: Arc::clone(clients), rt: Arc::clone(rt), is_done: false };
            rt.spawn_blocking(Box::new(move || writer.run()));
        }
        // A writer that is dropped, at the end of the runtime, drops the sender.
        let _ = result.await;
    }
}

/// Writes the list until no request waits.
struct Writer {
    clients: Arc<Clients>,
    rt: RuntimeRef,
    /// Another thread may write.
    is_done: bool,
}

impl Writer {
    fn run(&mut self) {
        while let Some(requests) = self.next() {
            self.clients.state.expire(now(&self.rt));
            for request in requests {
                let _ = request.send(());
            }
        }
    }

    /// The requests that the next write is for; ends the writing if there are none.
    fn next(&mut self) -> Option<Vec<oneshot::Sender<()>>> {
        let mut waiting = self.clients.ends.0.lock();
        self.is_done = waiting.requests.is_empty();
        waiting.writing = !self.is_done;
        waiting.writing.then(|| mem::take(&mut waiting.requests))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.is_done {
            *self.clients.ends.0.lock() = Waiting::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        io,
        sync::atomic::{AtomicBool, Ordering},
    };

    use futures::future::join_all;
    use millrace_admission::ClientAddr;
    use millrace_nfs::v4::{ClientId, Status};
    use millrace_nfs4_state::{
        ChannelAttributes, ClientList, CreateSession, ExchangeId, Identity, Limits, State,
    };
    use millrace_runtime::virtual_time::VirtualTime;

    use super::*;

    /// A list in memory that counts its writes.
    #[derive(Debug, Default)]
    struct List {
        owners: Mutex<BTreeSet<Box<[u8]>>>,
        /// Numbers of clients that the writes removed.
        removals: Mutex<Vec<usize>>,
        fails: AtomicBool,
    }

    #[derive(Debug)]
    struct Shared(Arc<List>);

    impl ClientList for Shared {
        fn add(&self, owner: &[u8], _: ClientAddr) -> io::Result<()> {
            self.0.owners.lock().insert(owner.into());
            Ok(())
        }

        fn remove(&self, owners: &[Box<[u8]>]) -> io::Result<()> {
            if self.0.fails.load(Ordering::Relaxed) {
                return Err(io::Error::other("the disk is full"));
            }
            self.0.removals.lock().push(owners.len());
            self.0.owners.lock().retain(|owner| !owners.contains(owner));
            Ok(())
        }
    }

    fn clients() -> (Arc<Clients>, Arc<List>) {
        let list = Arc::new(List::default());
        let state = State::new(Limits::default(), Identity { epoch: 1, secret: [0; 16] });
        let state =
            state.with_client_list(Box::new(Shared(Arc::clone(&list))), Vec::new(), Default::default());
        let (owner, scope) = (String::new(), String::new());
        let (ends, kept_bytes) = (Ends::default(), Arc::default());
        (
            Arc::new(Clients {
                state,
                owner,
                scope,
                durable: true,
                ends,
                presence: Default::default(),
                kept_bytes,
            }),
            list,
        )
    }

    /// A client that is on the list, and has ended its session.
    fn unmounted(clients: &Clients, rt: &RuntimeRef, owner: &str) -> ClientId {
        let identify = ExchangeId {
            owner: owner.as_bytes(),
            verifier: [1; 8],
            update: false,
            principal: b"p",
            is_protected: false,
            machine: None,
            address: std::net::Ipv4Addr::LOCALHOST.into(),
        };
        let identified = clients.state.exchange_id(&identify, now(rt)).unwrap();
        let channel = ChannelAttributes {
            header_pad: 0,
            request_bytes: 4096,
            response_bytes: 4096,
            cached_bytes: 1024,
            operations: 8,
            slots: 1,
        };
        let create = CreateSession {
            client: identified.client,
            sequence: identified.sequence,
            back_channel: false,
            fore: channel,
            back: channel,
            principal: b"p",
        };
        let session = clients.state.create_session(&create, now(rt)).unwrap().session;
        let client = Arc::clone(clients.state.session(session).unwrap().client());
        clients.state.reclaim_complete(&client).unwrap();
        clients.state.destroy_session(session).unwrap();
        identified.client
    }

    #[test]
    fn clients_that_end_together_are_removed_together_before_the_replies() {
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        time.block_on(async {
            let (clients, list) = clients();
            let ids: Vec<_> = (0..100).map(|n| unmounted(&clients, &rt, &format!("client {n}"))).collect();
            assert_eq!(list.owners.lock().len(), 100);
            let ended = join_all(ids.iter().map(|id| clients.destroy_client(&rt, *id))).await;
            assert!(ended.iter().all(Result::is_ok), "{ended:?}");
            assert_eq!((list.owners.lock().len(), &**list.removals.lock()), (0, &[100][..]));
            assert_eq!(clients.destroy_client(&rt, ids[0]).await, Err(Status::StaleClientid));

            let last = unmounted(&clients, &rt, "another");
            clients.destroy_client(&rt, last).await.unwrap();
            assert_eq!((list.owners.lock().len(), &**list.removals.lock()), (0, &[100, 1][..]));
        })
        .unwrap();
    }

    #[test]
    fn a_client_has_ended_although_the_list_cannot_be_written() {
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        time.block_on(async {
            let (clients, list) = clients();
            let id = unmounted(&clients, &rt, "client");
            list.fails.store(true, Ordering::Relaxed);
            clients.destroy_client(&rt, id).await.unwrap();
            assert_eq!(list.owners.lock().len(), 1);
            list.fails.store(false, Ordering::Relaxed);
            clients.state.expire(now(&rt));
            assert_eq!(list.owners.lock().len(), 0, "the next attempt removes it");
        })
        .unwrap();
    }

    #[test]
    fn requests_do_not_wait_for_a_writer_that_does_not_run() {
        let time = VirtualTime::new(1);
        let rt = time.runtime();
        time.block_on(async {
            let (clients, list) = clients();
            let (written, result) = oneshot::channel();
            *clients.ends.0.lock() = Waiting { writing: true, requests: vec![written] };
            drop(Writer { clients: Arc::clone(&clients), rt: Arc::clone(&rt), is_done: false });
            assert!(result.await.is_err());
            let id = unmounted(&clients, &rt, "client");
            clients.destroy_client(&rt, id).await.unwrap();
            assert_eq!(list.owners.lock().len(), 0);
        })
        .unwrap();
    }
}
