//! From a path of an NFSv4 server to its export.

use std::sync::Arc;

use millrace_nfs::v4::{Operation, Status};
use millrace_oncrpc::CallClass;

use super::{
    compounds::{Accepted, GetChangeProof, GetServerInfo, Root, ServerInfo, Step},
    status::status_of,
};
use crate::{
    Error,
    credential::CallCredential,
    mount::{Mounted, normalize, text},
    ops::{self, FileType, access},
    v4::{self, ChangeProof, Session, compound::Compound},
};

/// Maximum size of the replies to these calls in bytes.
const REPLY: usize = 2048;

/// The end of a search for an export.
pub(crate) struct Found {
    pub(crate) mounted: Mounted,
    /// Whether the root has the first component of the path.
    pub(crate) known: bool,
}

type Reply<O> = Result<O, (Operation, Status)>;

async fn call<C: Compound>(
    session: &Arc<Session>,
    credential: &CallCredential,
    name: &'static str,
    compound: &mut C,
) -> Result<Reply<C::Ok>, Error> {
    let spec = v4::spec(name, REPLY, CallClass::Other);
    Ok(session.call(credential, spec, false, compound, None).await?.result)
}

/// Finds the export that contains `path`: NFSv4 has one tree of all exports and no MOUNT. An export begins where the
/// file system ID changes; the last such directory of the path is the export, or the root of the tree if there is none.
pub(crate) async fn find_export(
    session: &Arc<Session>,
    credential: &CallCredential,
    path: &[u8],
) -> Result<Found, Error> {
    let root = match call(session, credential, "PUTROOTFH", &mut Root).await? {
        Ok(root) => root,
        Err((_, Status::WrongSec)) => return Err(wrong_flavor(session, credential, None, path).await?),
        Err((operation, status)) => return Err(Error::Nfs4 { operation, status }),
    };
    let path = normalize(path);
    let (mut export, mut depth, mut at, mut known) = (root, 0, root, true);
    let names: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|name| !name.is_empty()).collect();
    for (i, name) in names.iter().enumerate() {
        let mut step = Step { dir: at.handle, name };
        match call(session, credential, "LOOKUP", &mut step).await? {
            Ok(next) if next.file_type == FileType::Directory && *name != b".." => {
                if next.fsid != at.fsid {
                    (export, depth) = (next, i + 1);
                }
                at = next;
            }
            // Later calls resolve the rest, and report errors.
            Ok(_) => break,
            Err((_, Status::WrongSec)) => {
                let at = Some((at.handle, *name));
                return Err(wrong_flavor(session, credential, at, &path).await?);
            }
            Err((_, Status::NoEnt)) if i == 0 => {
                if !can_create(session, credential, root.handle).await? {
                    let server = session.pool.server().to_owned();
                    let exports = names_in(session, credential, root.handle).await?;
                    return Err(Error::UnknownExport { server, path: text(&path), exports });
                }
                known = false;
                break;
            }
            Err(_) => break,
        }
    }
    let (export_names, rest) = names.split_at(depth);
    let mounted = Mounted {
        export: format!("/{}", text(&export_names.join(&b'/'))),
        root: export.handle,
        rest: rest.join(&b'/'),
    };
    Ok(Found { mounted, known })
}

/// The error for an object that the server does not let use with the flavor of the calls: of a name in a directory, or the
/// root of the tree.
async fn wrong_flavor(
    session: &Arc<Session>,
    credential: &CallCredential,
    at: Option<(ops::FileHandle, &[u8])>,
    path: &[u8],
) -> Result<Error, Error> {
    let accepted = call(session, credential, "SECINFO", &mut Accepted { at }).await?;
    Ok(Error::SecurityFlavor {
        server: session.pool.server().to_owned(),
        path: text(path),
        used: session.pool.callers.flavor(),
        accepted: accepted.unwrap_or_default(),
    })
}

/// The properties of the file system of the export with this root, or the status of the call.
pub(crate) async fn server_info(
    session: &Arc<Session>,
    credential: &CallCredential,
    root: ops::FileHandle,
) -> Result<Result<ServerInfo, ops::Status>, Error> {
    match call(session, credential, "FSINFO", &mut GetServerInfo { root }).await? {
        Ok(info) => Ok(Ok(info)),
        Err((operation, status)) => Ok(Err(status_of(operation, status)?)),
    }
}

/// What the change attribute of objects proves.
pub(crate) async fn change_proof(
    session: &Arc<Session>,
    credential: &CallCredential,
    object: ops::FileHandle,
) -> Result<ChangeProof, Error> {
    let proof = call(session, credential, "GETATTR", &mut GetChangeProof { object }).await?;
    Ok(proof.unwrap_or_default())
}

/// Whether the caller can create objects in `dir`: not in the directories above exports.
async fn can_create(
    session: &Arc<Session>,
    credential: &CallCredential,
    dir: ops::FileHandle,
) -> Result<bool, Error> {
    let mut args = ops::Access { object: dir, access: access::EXTEND };
    let granted = call(session, credential, "ACCESS", &mut args).await?;
    Ok(granted.is_ok_and(|ok| ok.access & access::EXTEND != 0))
}

/// The first names in a directory, as paths. Errors are ignored: the names are for a message.
async fn names_in(
    session: &Arc<Session>,
    credential: &CallCredential,
    dir: ops::FileHandle,
) -> Result<Vec<String>, Error> {
    let count = REPLY as u32 / 2;
    let mut args = ops::Readdir { dir, cookie: 0, verifier: [0; 8], count };
    let page = call(session, credential, "READDIR", &mut args).await?;
    let path = |e: ops::DirEntry| format!("/{}", e.name_lossy());
    Ok(page.map_or_else(|_| Vec::new(), |page| page.entries.into_iter().map(path).collect()))
}
