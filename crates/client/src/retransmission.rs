//! Retransmission of calls after the loss of a connection (documentation only).
//!
//! A call that times out or whose connection is lost is retransmitted on a new connection until it is
//! answered or [`RetryPolicy::max_elapsed`](crate::RetryPolicy::max_elapsed) has passed, which includes the time for
//! recovery and for what the server asks to repeat later. The server may have executed the first transmission.
//!
//! - **Idempotent procedures** (reads, lookups, COMMIT) need no further measures.
//! - **WRITE** is idempotent too, but a late execution of the first transmission must not overwrite data that
//!   was written after the reply to the second. The retransmission has the same XID, by which the server's
//!   duplicate request cache recognises it; and a connection with abandoned calls is reset, so that the
//!   server receives no further part of them.
//! - **Non-idempotent procedures** (SETATTR, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK) are
//!   retransmitted *with the same XID*. A server keeps recent replies in a duplicate request cache and sends
//!   the same reply again. The cache survives the loss of a connection, but not a restart of the server.
//! - If the reply to such a retransmission is the error that the first execution of the call would cause, the
//!   client checks whether that is the reason:
//!
//! | procedure | status | treated as success if |
//! |---|---|---|
//! | REMOVE, RMDIR | NOENT | always: the name does not exist |
//! | MKDIR | EXIST | the name is a directory |
//! | SYMLINK | EXIST | the name is a symbolic link with the same target |
//! | MKNOD | EXIST | the name is a file of the same type |
//! | LINK | EXIST | the name is the same file |
//! | RENAME | NOENT | the new name exists and the old one does not |
//! | SETATTR with guard | NOT_SYNC | the attributes are those that were to be set |
//! | CREATE guarded | EXIST | never: another client may have created it; use an exclusive CREATE to distinguish |
//! | CREATE exclusive | - | the server recognises the verifier, also after a restart |
//!
//! With **NFSv4** the slot and the sequence number of a call identify it instead of the XID, on every connection, and
//! the server executes it once. The table applies only if the server has lost the session, such as by a restart, before
//! the reply to a call. The client then creates another session, with a new client ID if the server rejects the old
//! one, and claims its locks again.
//!
//! **Unstable data**: [`File`](crate::handles::File) retains UNSTABLE data, the newest of each byte, until
//! COMMIT returns the same write verifier as the WRITEs. A changed verifier means that the server may have
//! lost the data. The file then rewrites it, while no other call of this client changes the same range, and
//! commits again, until the verifier is unchanged. Reads through a `File` return the retained data. SETATTR
//! and a truncating CREATE first commit the data that an open file of the same client retains, as Linux does.
//!
//! **JUKEBOX** (the server is temporarily unable to execute the call): the client repeats the call with a new
//! XID after a delay, within the same policy.
