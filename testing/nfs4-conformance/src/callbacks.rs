//! The callbacks of a server: a client that answers them and shows them to the cases.

use std::{collections::VecDeque, sync::Arc};

use millrace_nfs::v4::*;
use millrace_oncrpc::{AcceptError, CallHeader, CallbackHandler, ReplyHeader, ReplyStatus};
use millrace_runtime::sync::Mutex;
use millrace_xdr::{Arena, Decoder, Encoder, Message, XdrError};

use crate::compound::Call;

/// Bytes of a reply.
const REPLY: usize = 512;

/// A callback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Callback {
    /// CB_RECALL of this delegation of a file.
    Recall(Stateid, Vec<u8>),
    /// CB_GETATTR of a file.
    Getattr(Vec<u8>),
    /// Another operation.
    Other(CallbackOperation),
}

/// The callbacks of all sessions of a connection, which are answered at once.
pub struct Callbacks {
    arena: Arena,
    received: Mutex<VecDeque<Callback>>,
    /// The attributes `change` and `size` that CB_GETATTR returns.
    attributes: Mutex<(u64, u64)>,
}

impl Callbacks {
    /// Answers the callbacks on a connection from now on.
    pub fn accept(c: &impl Call) -> Arc<Self> {
        let (received, attributes) = Default::default();
        let callbacks = Arc::new(Self { arena: c.arena().clone(), received, attributes });
        c.handle_callbacks(&(Arc::clone(&callbacks) as Arc<dyn CallbackHandler>));
        callbacks
    }

    /// The callback that was received first, which is removed.
    #[must_use]
    pub fn take(&self) -> Option<Callback> {
        self.received.lock().pop_front()
    }

    /// Sets the attributes that CB_GETATTR returns.
    pub fn set_attributes(&self, change: u64, size: u64) {
        *self.attributes.lock() = (change, size);
    }

    /// Executes CB_COMPOUND: each operation succeeds.
    fn compound(&self, d: &mut Decoder<'_>, e: &mut Encoder) -> Result<(), XdrError> {
        let args: CallbackArgs<'_> = d.get()?;
        let mut results = CompoundEncoder::begin(e, &args.tag);
        for _ in 0..args.operations {
            let operation: CallbackOperation = d.get()?;
            results.operation(e, operation);
            let received = match operation {
                CallbackOperation::Sequence => {
                    let args: CbSequenceArgs = d.get()?;
                    let CbSequenceArgs { session, sequence, slot, highest_slot, .. } = args;
                    let target_highest_slot = highest_slot;
                    e.put(&CbSequenceOk { session, sequence, slot, highest_slot, target_highest_slot });
                    continue;
                }
                CallbackOperation::Recall => {
                    let args: CbRecallArgs<'_> = d.get()?;
                    Callback::Recall(args.stateid, args.handle.to_vec())
                }
                CallbackOperation::Getattr => {
                    let args: CbGetattrArgs<'_> = d.get()?;
                    let (change, size) = *self.attributes.lock();
                    e.put(&Attributes { change: Some(change), size: Some(size), ..Attributes::default() });
                    Callback::Getattr(args.handle.to_vec())
                }
                other => {
                    results.fail(e, Status::NotSupp);
                    self.received.lock().push_back(Callback::Other(other));
                    break;
                }
            };
            self.received.lock().push_back(received);
        }
        results.finish(e);
        Ok(())
    }
}

impl CallbackHandler for Callbacks {
    fn answer(&self, call: &Message) -> Option<Message> {
        let mut d = Decoder::new(call);
        let (header, _) = CallHeader::decode(&mut d).ok()?;
        let accepted = |status| ReplyHeader { xid: header.xid, status };
        let mut e = Encoder::new(&self.arena, REPLY);
        e.put(&accepted(ReplyStatus::Success));
        if header.proc == CB_COMPOUND && self.compound(&mut d, &mut e).is_err() {
            e = Encoder::new(&self.arena, REPLY);
            e.put(&accepted(ReplyStatus::Accept(AcceptError::GarbageArgs)));
        }
        e.finish().ok()
    }
}
