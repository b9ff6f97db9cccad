//! Conflicts of requests with delegations of NFSv4 clients, for all protocols.

use std::time::Duration;

use millrace_nfs::v4::{ClientId, NfsTime, Status};
use millrace_nfs4_state::{Changing, DelegatedTimes};
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
    /// reports: the size, and times that advance with each report of unsaved data (RFC 8881 section 10.4.3) or that are
    /// delegated to it (RFC 9754 section 5). `attr`: those of the file system.
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
        let Some(writer) = state.writer(used.client, &key) else { return Ok(attr) };
        let Some(held) = self.held_attributes(&writer, &key).await else {
            self.read(used, handle)?;
            return Ok(attr);
        };
        let times = writer.times.map_or_else(Times::default, |granted| {
            Times::later(&granted, held.time_access, held.time_modify, self.rt.wall_clock())
        });
        let unsaved = held.change != writer.change;
        let atime = times.access.unwrap_or(attr.atime);
        let size = if unsaved { held.size } else { attr.size };
        if used.export.info().change_counter {
            let modified = unsaved || times.modify.is_some_and(|mtime| mtime != attr.mtime);
            let attr = if modified { counted(used.export, handle, times.modify, attr).await } else { attr };
            return Ok(Attr { size, atime, ..attr });
        }
        // The time of change is not earlier than that of a modification.
        let modified = times.modify.filter(|mtime| *mtime > attr.ctime).map_or(attr.change, Time::change);
        let change = state.reported_change(writer.client, &key, modified, unsaved);
        let ctime = Time::of_change(change);
        let mtime = times.modify.unwrap_or(if unsaved { ctime } else { attr.mtime });
        Ok(Attr { size, atime, mtime, ctime, change, ..attr })
    }
}

/// The times that the holder of a delegation has set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Times {
    pub(crate) access: Option<Time>,
    pub(crate) modify: Option<Time>,
}

impl Times {
    /// Those of the times `access` and `modify` that are later than when the file was delegated, but none later than
    /// `now`, the time since the epoch (RFC 9754 section 5).
    pub(crate) fn later(
        granted: &DelegatedTimes,
        access: Option<NfsTime>,
        modify: Option<NfsTime>,
        now: Duration,
    ) -> Self {
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let now = Time { seconds, nanos: now.subsec_nanos() };
        let later = |set: Option<NfsTime>, granted: NfsTime| {
            let set = set.filter(|set| *set > granted && set.nanoseconds < 1_000_000_000)?;
            Some(Time { seconds: set.seconds, nanos: set.nanoseconds }.min(now))
        };
        Self { access: later(access, granted.access), modify: later(modify, granted.modify) }
    }
}

/// The attributes of a file that its holder has modified, at `mtime` if the times are delegated. The file system counts
/// the report as a change, so that the counter never decreases, however few writes save the data.
async fn counted(export: &Export, handle: &Handle, mtime: Option<Time>, attr: Attr) -> Attr {
    let set = SetAttr { mtime: mtime.map_or(SetTime::Now, SetTime::To), ..SetAttr::default() };
    let changed = export.fs().setattr(&Identity::root(), handle, &set, None).await;
    changed.ok().and_then(|wcc| wcc.after).unwrap_or(attr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delegated_times_are_later_than_the_grant_and_not_in_the_future() {
        let at = |seconds| NfsTime { seconds, nanoseconds: 7 };
        let granted = DelegatedTimes { access: at(100), modify: at(200) };
        let times = |access, modify| {
            let times = Times::later(&granted, Some(access), Some(modify), Duration::new(300, 5));
            (times.access.map(|t| (t.seconds, t.nanos)), times.modify.map(|t| (t.seconds, t.nanos)))
        };
        assert_eq!(times(at(100), at(200)), (None, None), "unchanged");
        assert_eq!(times(at(99), at(i64::MIN)), (None, None), "earlier");
        assert_eq!(times(at(101), at(299)), (Some((101, 7)), Some((299, 7))));
        assert_eq!(times(at(300), at(i64::MAX)), (Some((300, 5)), Some((300, 5))), "later than now");
        let invalid = NfsTime { seconds: 250, nanoseconds: 1_000_000_000 };
        assert_eq!(times(invalid, invalid), (None, None));
        assert_eq!(Times::later(&granted, None, None, Duration::MAX), Times::default());
    }
}
