//! Conflicts of requests with delegations of NFSv4 clients, for all protocols.

use millrace_nfs::v4::{ClientId, Status};
use millrace_nfs4_state::Changing;
use millrace_vfs::{Attr, Handle, Identity, SetAttr, SetTime, Time};

use crate::{
    callbacks::CallbackSender, config::Delegations, export::Export, file_key::file_key, nfs4_clients::now,
};

/// A file that a request uses without an open.
#[derive(Clone, Copy)]
pub(crate) struct Used<'u> {
    pub(crate) export: &'u Export,
    /// The client, if it speaks NFSv4. Its own delegation is no conflict.
    pub(crate) client: Option<ClientId>,
}

impl CallbackSender {
    /// Begins a change of a file; it is not delegated before the result is dropped.
    ///
    /// # Errors
    /// DELAY while a delegation is recalled; GRACE while clients may reclaim delegations of the export.
    pub(crate) fn change(&self, used: Used<'_>, handle: &Handle) -> Result<Changing, Status> {
        let state = &self.clients.state;
        if !state.may_delegate() {
            return Ok(Changing::default());
        }
        self.check_grace(used.export)?;
        let changing = state.change(used.client, &file_key(used.export, handle), now(&self.rt));
        if changing.is_err() {
            self.send_waiting();
        }
        changing
    }

    /// Checks that no other client has unsaved data of a file that is read.
    ///
    /// # Errors
    /// Those of [`change`](Self::change).
    pub(crate) fn read(&self, used: Used<'_>, handle: &Handle) -> Result<(), Status> {
        let state = &self.clients.state;
        if !state.may_delegate() {
            return Ok(());
        }
        self.check_grace(used.export)?;
        let read = state.check_read(used.client, &file_key(used.export, handle), now(&self.rt));
        if read.is_err() {
            self.send_waiting();
        }
        read
    }

    /// Begins a change of the file `name` in a directory, if there is one, because it is removed or replaced, or gets
    /// another name.
    ///
    /// # Errors
    /// Those of [`change`](Self::change).
    pub(crate) async fn change_child(
        &self,
        used: Used<'_>,
        caller: &Identity,
        dir: &Handle,
        name: &[u8],
    ) -> Result<Changing, Status> {
        if !self.clients.state.may_delegate() {
            return Ok(Changing::default());
        }
        match used.export.fs().lookup(caller, dir, name).await {
            Ok((child, _)) => self.change(used, &child),
            // The change of this name will fail with the same error.
            Err(_) => Ok(Changing::default()),
        }
    }

    fn check_grace(&self, export: &Export) -> Result<(), Status> {
        let reclaims = export.policy().delegations != Delegations::None && self.clients.state.in_grace();
        if reclaims { Err(Status::Grace) } else { Ok(()) }
    }

    /// The attributes of a file that is not delegated to another client for writing, or else those that this client
    /// reports: the size, and times that advance with each report of unsaved data (RFC 8881 section 10.4.3). `attr`: those of
    /// the file system.
    ///
    /// # Errors
    /// DELAY if the client does not answer in time: its delegation is recalled.
    pub(crate) async fn attributes(
        &self,
        used: Used<'_>,
        handle: &Handle,
        attr: Attr,
    ) -> Result<Attr, Status> {
        let state = &self.clients.state;
        if !state.may_delegate() {
            return Ok(attr);
        }
        let key = file_key(used.export, handle);
        let Some((holder, granted)) = state.writer(used.client, &key) else { return Ok(attr) };
        let Some(held) = self.held_attributes(holder, &key).await else {
            self.read(used, handle)?;
            return Ok(attr);
        };
        let unsaved = held.change != granted;
        if used.export.info().change_counter {
            return Ok(if unsaved { counted(used.export, handle, held.size, attr).await } else { attr });
        }
        let change = state.reported_change(holder, &key, attr.change, unsaved);
        let ctime = Time::of_change(change);
        Ok(match unsaved {
            true => Attr { size: held.size, mtime: ctime, ctime, change, ..attr },
            false => Attr { ctime, change, ..attr },
        })
    }
}

/// The attributes of a file with unsaved data, of which there are `size` bytes. The file system counts the report as a
/// change, so that the counter never decreases, however few writes save the data.
async fn counted(export: &Export, handle: &Handle, size: u64, attr: Attr) -> Attr {
    let now = SetAttr { mtime: SetTime::Now, ..SetAttr::default() };
    let changed = export.fs().setattr(&Identity::root(), handle, &now, None).await;
    Attr { size, ..changed.ok().and_then(|wcc| wcc.after).unwrap_or(attr) }
}
