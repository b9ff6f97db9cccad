//! Callbacks about delegations: CB_RECALL, CB_RECALL_ANY and CB_GETATTR (RFC 8881 sections 20.1, 20.2, 20.6).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use millrace_nfs::v4::{
    Attribute, Attributes, Bitmap, CallbackOperation, CbGetattrArgs, CbRecallAnyArgs, CbRecallArgs, ClientId,
    NfsTime, Opaque, Status, recall_any,
};
use millrace_nfs4_state::{Client, Recall, RecallAny, Writer};
use millrace_xdr::{Decode, Decoder, Encoder, XdrError};

use super::{Callback, CallbackSender};
use crate::nfs4_clients::now;

/// Time limit of CB_GETATTR, for which a request waits.
const GETATTR_LIMIT: Duration = Duration::from_secs(1);
/// Maximum number of CB_RECALL to a client for one reason at a time, of those that the client may have in progress.
const RECALLS: usize = 8;
/// Statuses of a client that has not received the reply of OPEN with the delegation yet.
const UNKNOWN: [Status; 2] = [Status::BadStateid, Status::BadHandle];

/// The attributes of a file that its holder of a write delegation returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldAttributes {
    pub(crate) change: u64,
    pub(crate) size: u64,
    /// The times, if they are delegated.
    pub(crate) time_access: Option<NfsTime>,
    pub(crate) time_modify: Option<NfsTime>,
}

impl<'a> Decode<'a> for HeldAttributes {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let attributes: Attributes<'a> = d.get()?;
        let (time_access, time_modify) = (attributes.time_deleg_access, attributes.time_deleg_modify);
        match (attributes.change, attributes.size) {
            (Some(change), Some(size)) => Ok(Self { change, size, time_access, time_modify }),
            _ => Err(d.invalid(0)),
        }
    }
}

impl CallbackSender {
    /// Sends CB_RECALL for the delegations with which requests conflict.
    pub(super) fn recall_delegations(&self) {
        let recalls = self.clients.state.take_recalls();
        if recalls.is_empty() {
            return;
        }
        let mut clients: BTreeMap<ClientId, Vec<Recall>> = BTreeMap::new();
        for recall in recalls {
            clients.entry(recall.client).or_default().push(recall);
        }
        for (client, recalls) in clients {
            for recalls in recalls.chunks(recalls.len().div_ceil(RECALLS)) {
                match self.callback(client) {
                    Some(callback) => {
                        self.rt.spawn("NFSv4 recall", Box::pin(callback.recall_each(recalls.to_vec())));
                    }
                    // The next conflicting request repeats the recall.
                    None => recalls.iter().for_each(|recall| self.answered(recall, false)),
                }
            }
        }
    }

    fn answered(&self, recall: &Recall, accepted: bool) {
        self.clients.state.recall_answered(recall, accepted);
    }

    /// Sends CB_RECALL_ANY to clients with many delegations, if `client` has got another.
    pub(crate) fn recall_any(&self, client: &Arc<Client>) {
        for recall in self.clients.state.take_recalls_of_any(client, now(&self.rt)) {
            if let Some(callback) = self.callback(recall.client) {
                self.rt.spawn("NFSv4 recall of any", Box::pin(callback.recall_any(recall)));
            }
        }
    }

    /// CB_GETATTR: the attributes of the file with key `file` from the holder of its write delegation. `None` if it
    /// does not answer in time.
    pub(crate) async fn held_attributes(&self, writer: &Writer, file: &[u8]) -> Option<HeldAttributes> {
        let (handle, callback) = (self.handle(file)?, self.callback(writer.client)?);
        let times = if writer.times.is_some() { Attributes::DELEGATED_TIMES } else { Bitmap::EMPTY };
        callback.getattr(&handle, times.with(Attribute::Change).with(Attribute::Size)).await
    }
}

impl Callback {
    /// Recalls one delegation after the other, except those that are returned in the meantime.
    async fn recall_each(self, recalls: Vec<Recall>) {
        for recall in recalls {
            match self.sender.handle(&recall.file) {
                Some(handle) if self.sender.clients.state.is_recalled(&recall) => {
                    self.recall(&handle, &recall).await;
                }
                _ => self.sender.answered(&recall, false),
            }
        }
    }

    async fn recall(&self, handle: &[u8], recall: &Recall) {
        let operation = CallbackOperation::Recall;
        let args = CbRecallArgs { stateid: recall.stateid, truncate: false, handle: Opaque(handle) };
        let encode = |e: &mut Encoder| {
            e.put(&operation);
            e.put(&args);
        };
        let result = self.execute(operation, &UNKNOWN, encode).await;
        tracing::debug!(?operation, ?result, "callback ended");
        self.sender.answered(recall, result == Ok(Status::Ok));
    }

    async fn recall_any(self, recall: RecallAny) {
        let operation = CallbackOperation::RecallAny;
        let types = Bitmap::from([recall_any::READ_DELEGATIONS | recall_any::WRITE_DELEGATIONS, 0, 0]);
        let encode = |e: &mut Encoder| {
            e.put(&operation);
            e.put(&CbRecallAnyArgs { keep: recall.keep, types });
        };
        let result = self.execute(operation, &[], encode).await;
        tracing::debug!(?operation, ?result, "callback ended");
    }

    async fn getattr(self, handle: &[u8], requested: Bitmap) -> Option<HeldAttributes> {
        let operation = CallbackOperation::Getattr;
        let encode = |e: &mut Encoder| {
            e.put(&operation);
            e.put(&CbGetattrArgs { handle: Opaque(handle), requested });
        };
        let result = self.attempt::<HeldAttributes>(operation, GETATTR_LIMIT, encode).await;
        result.ok()?.inspect_err(|status| tracing::debug!(?operation, ?status, "callback failed")).ok()
    }
}
