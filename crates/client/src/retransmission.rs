//! What happens to calls when a connection is lost: documentation only.
//!
//! A call whose connection is lost, or that times out, is sent again on a new connection until it is answered or
//! [`RetryPolicy::max_elapsed`](crate::RetryPolicy::max_elapsed) has passed. Whether the server executed it the first
//! time is not known.
//!
//! - **Idempotent procedures** (reads, look-ups, COMMIT) are simply sent again.
//! - **WRITE** is idempotent too, but a first WRITE that is executed late must not undo what was written after the
//!   second one was answered. It is sent again with the same XID, by which the server's duplicate request cache
//!   recognises the first one; and a connection on which calls were given up is reset, so that what the server has not
//!   received of them never arrives.
//! - **The others** (SETATTR, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK) are sent again *with the same
//!   XID*. A server keeps its recent answers in a duplicate request cache and gives the same answer again; that
//!   survives a lost connection, but not a restart of the server.
//! - If such a call that was sent again is answered with the error that its own first execution would cause, the
//!   client looks whether that is what happened:
//!
//! | procedure | answer | taken as success when |
//! |---|---|---|
//! | REMOVE, RMDIR | NOENT | always: the name is gone |
//! | MKDIR | EXIST | the name is a directory |
//! | SYMLINK | EXIST | the name is a symbolic link with the same text |
//! | MKNOD | EXIST | the name is a file of the same type |
//! | LINK | EXIST | the name is the same file |
//! | RENAME | NOENT | the new name exists and the old one does not |
//! | SETATTR with guard | NOT_SYNC | the attributes are those that were to be set |
//! | CREATE guarded | EXIST | never: somebody else may have made it. Use an exclusive CREATE to know |
//! | CREATE exclusive | - | the server itself recognises the verifier, also after a restart |
//!
//! **Unstable data**: [`File`](crate::nfs3::File) keeps what it wrote UNSTABLE until COMMIT returns the same write verifier
//! as the WRITEs: of each byte the newest data. If the verifier has changed, the server may have lost the data. It is
//! then written again, while no other call of this client changes the same range, and committed again, until the
//! verifier stays. Reads through a `File` return that data meanwhile. SETATTR and a CREATE that truncates commit what an
//! open file of the same client retains first, as Linux does.
//!
//! **JUKEBOX** (the server asks for patience): the call is made again as a new call after a pause, within the same
//! policy.
