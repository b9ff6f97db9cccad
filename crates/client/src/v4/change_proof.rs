//! What change attributes prove.

use millrace_nfs::v4::ChangeAttrType;

/// What the change attributes of a file system prove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ChangeProof {
    /// Nothing, or nothing that the caller needs.
    #[default]
    Nothing,
    /// That a change of a name is the only one of its directory.
    OfNames,
    /// That a change is the only one of an object: they count the changes.
    OfObjects,
}

impl ChangeProof {
    /// The proof of change attributes of this type; `None` if the server omits it.
    pub(crate) fn of(change_type: Option<ChangeAttrType>) -> Self {
        match change_type {
            Some(ChangeAttrType::VersionCounter | ChangeAttrType::VersionCounterWithoutPnfs) => {
                Self::OfObjects
            }
            Some(ChangeAttrType::Monotonic) | None => Self::OfNames,
            // Several changes within the resolution of a clock have one time.
            Some(ChangeAttrType::TimeMetadata | ChangeAttrType::Undefined) => Self::Nothing,
        }
    }
}
