//! Attributes that clients set.

use millrace_nfs::v4::{Attribute, Attributes, Bitmap, Fattr, ModeUmask, Owner, SetTime, Status};
use millrace_vfs::{SetAttr, Time};

use super::compound::Scope;
use crate::owners::Kind;

/// Permission, set-id and sticky bits.
const MODE_BITS: u32 = 0o7777;

fn time(set: Option<SetTime>) -> millrace_vfs::SetTime {
    match set {
        None => millrace_vfs::SetTime::Keep,
        Some(SetTime::ServerTime) => millrace_vfs::SetTime::Now,
        Some(SetTime::ClientTime(t)) => {
            millrace_vfs::SetTime::To(Time { seconds: t.seconds, nanos: t.nanoseconds })
        }
    }
}

impl Scope<'_> {
    /// Converts the attributes of a new object.
    ///
    /// # Errors
    /// Those of [`Self::set_attr`]; INVAL for times of a delegation.
    pub(super) async fn new_attr(&self, attributes: &Fattr<'_>) -> Result<SetAttr, Status> {
        let set = self.set_attr(attributes).await?;
        if attributes.set.intersects(Attributes::DELEGATED_TIMES) { Err(Status::Inval) } else { Ok(set) }
    }

    /// Converts attributes to set, except the times of a delegation.
    ///
    /// # Errors
    /// ATTRNOTSUPP for attributes that are not supported, INVAL for others that cannot be set and for
    /// modes that are not permission bits, BADOWNER for users and groups that do not exist, BADXDR.
    pub(super) async fn set_attr(&self, attributes: &Fattr<'_>) -> Result<SetAttr, Status> {
        let values: Attributes<'_> = attributes.to_set(self.supported())?;
        let (mode, umask) = match values.mode_umask {
            Some(ModeUmask { mode, umask }) => (Some(mode), umask & 0o777),
            None => (values.mode, 0),
        };
        if mode.is_some_and(|mode| mode & !MODE_BITS != 0) {
            return Err(Status::Inval);
        }
        Ok(SetAttr {
            mode,
            umask,
            uid: self.owner_id(Kind::User, values.owner).await?,
            gid: self.owner_id(Kind::Group, values.owner_group).await?,
            size: values.size,
            atime: time(values.time_access_set),
            mtime: time(values.time_modify_set),
        })
    }

    async fn owner_id(&self, kind: Kind, owner: Option<Owner<'_>>) -> Result<Option<u32>, Status> {
        match owner {
            None => Ok(None),
            Some(Owner::Id(id)) => Ok(Some(id)),
            Some(Owner::Name(b"")) => Err(Status::Inval),
            // Names are looked up for users that are known.
            Some(Owner::Name(_)) if !self.caller.has_names() => Err(Status::BadOwner),
            Some(Owner::Name(name)) => self.env.owners.id(kind, name).await.map(Some).ok_or(Status::BadOwner),
        }
    }
}

/// The times, in which some file systems store the verifier of an exclusive create.
pub(super) const VERIFIER: Bitmap = Bitmap::of(&[Attribute::TimeAccess, Attribute::TimeModify]);
