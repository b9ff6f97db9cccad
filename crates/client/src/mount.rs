//! MOUNT protocol: from a path to the root handle of its export (RFC 1813 appendix I).

use std::{ffi::OsString, os::unix::ffi::OsStringExt, sync::Arc};

use millrace_nfs::mount::{self, Dirpath, ExportEntry, MntOk, Procedure};
use millrace_oncrpc::{AcceptError, Credential, ReplySpec, Request, RpcError, SecurityFlavor, Transport};
use millrace_runtime::RuntimeRef;
use millrace_xdr::{Arena, Decoder, Encode, Encoder};

use crate::{Connector, Error, Options, Url, connect::UrlConnector, ops::FileHandle};

/// The flavor of calls without a caller (RFC 5531 section 8.1).
const AUTH_NONE: u32 = 0;

/// A mounted export.
pub(crate) struct Mounted {
    /// Name of the export.
    pub(crate) export: String,
    /// Handle of the root directory.
    pub(crate) root: FileHandle,
    /// The rest of the path below the export, without a leading slash.
    pub(crate) rest: Vec<u8>,
}

/// Lists the exports of the URL's server; the URL's path is ignored. Each export has the list of hosts or
/// groups that may mount it; an empty list means all.
///
/// # Errors
/// [`Error::Resolve`], [`Error::Connect`], [`Error::NoTransport`], and the errors of a call, also if the server does not
/// offer MOUNT.
pub async fn exports(
    rt: RuntimeRef,
    url: &Url,
    options: &Options,
) -> Result<Vec<(OsString, Vec<String>)>, Error> {
    let options = options.clone().with_url(url);
    let arena = Arena::new(millrace_buffer::ArenaConfig { limit: options.arena_limit, ..Default::default() });
    let credential = options.credential.credential();
    let registration = options.new_registration();
    let connector = UrlConnector::new(rt, arena.clone(), url, options, registration);
    let first = match url.mountport {
        Some(_) => connector.connect_mount().await?,
        None => connector.connect().await?,
    };
    let caller = Caller::new(&connector, arena, credential, Arc::clone(&first.transport));
    let list = caller.exports().await;
    first.transport.close();
    Ok(list?.into_iter().map(|(name, groups)| (OsString::from_vec(name), groups)).collect())
}

/// Mounts the longest export that contains `path`, for calls with the flavor `sec`. Tries `transport` first. MOUNT itself has
/// always AUTH_SYS (RFC 2623 section 2.3.2).
pub(crate) async fn mount(
    connector: &dyn Connector,
    arena: Arena,
    credential: Credential,
    transport: Arc<dyn Transport>,
    path: &[u8],
    sec: SecurityFlavor,
) -> Result<Mounted, Error> {
    let caller = Caller::new(connector, arena, credential, transport);
    let path = normalize(path);
    // If the server does not disclose its exports, try all prefixes of the path.
    let names: Vec<Vec<u8>> = match caller.exports().await {
        Ok(list) => list.into_iter().map(|(name, _)| name).collect(),
        Err(e) if e.is_unreachable() || matches!(e, Error::Resolve { .. }) => return Err(e),
        Err(_) => Vec::new(),
    };
    let known = names.iter().filter_map(|name| Some((name, rest_below(&path, name)?)));
    if let Some((export, rest)) = known.max_by_key(|(name, _)| name.len()) {
        let handle = caller.mnt(export).await?;
        let ok = handle.map_err(|status| caller.refused(export, status))?;
        let root = caller.root(export, &ok, sec)?;
        return Ok(Mounted { export: text(export), root, rest: rest.to_vec() });
    }
    let mut candidate = path.as_slice();
    let mut refused = None;
    loop {
        match caller.mnt(candidate).await? {
            Ok(ok) => {
                let root = caller.root(candidate, &ok, sec)?;
                let rest = rest_below(&path, candidate).unwrap_or_default().to_vec();
                return Ok(Mounted { export: text(candidate), root, rest });
            }
            Err(mount::Status::NoEnt | mount::Status::NotDir | mount::Status::Inval) => {}
            // Some servers return this status for every path that is not exported.
            Err(status) => refused = refused.or(Some((candidate.to_vec(), status))),
        }
        if candidate == b"/" {
            break;
        }
        let end = candidate.iter().rposition(|b| *b == b'/').unwrap_or(0);
        candidate = if end == 0 { b"/" } else { &candidate[..end] };
    }
    Err(match refused {
        Some((path, status)) => caller.refused(&path, status),
        None => {
            let exports = names.iter().map(|name| text(name)).collect();
            Error::UnknownExport { server: connector.server(), path: text(&path), exports }
        }
    })
}

/// Returns `path` with one slash before each component, without a trailing slash and `.`.
pub(crate) fn normalize(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|b| *b == b'/').filter(|c| !c.is_empty() && *c != b".");
    let joined = parts.flat_map(|c| [b"/", c]).collect::<Vec<_>>().concat();
    if joined.is_empty() { b"/".to_vec() } else { joined }
}

/// `name` in messages.
pub(crate) fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Returns the rest of `path` below `export`; `None` if `path` is not below it.
fn rest_below<'p>(path: &'p [u8], export: &[u8]) -> Option<&'p [u8]> {
    let end = export.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
    let rest = path.strip_prefix(&export[..end])?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
}

/// Calls MOUNT on the NFS connection or, if the server does not offer it there, on a separate connection.
struct Caller<'c> {
    connector: &'c dyn Connector,
    arena: Arena,
    credential: Credential,
    transport: futures::lock::Mutex<(Arc<dyn Transport>, bool)>,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        let (transport, own) = self.transport.get_mut();
        if *own {
            transport.close();
        }
    }
}

impl<'c> Caller<'c> {
    fn new(
        connector: &'c dyn Connector,
        arena: Arena,
        credential: Credential,
        transport: Arc<dyn Transport>,
    ) -> Self {
        Self { connector, arena, credential, transport: futures::lock::Mutex::new((transport, false)) }
    }

    fn refused(&self, path: &[u8], status: mount::Status) -> Error {
        Error::Mount { server: self.connector.server(), path: text(path), status }
    }

    async fn exports(&self) -> Result<Vec<(Vec<u8>, Vec<String>)>, Error> {
        self.call(Procedure::Export, "EXPORT", &(), mount::LIST_REPLY_HEAD, |d| {
            let list: Vec<ExportEntry<'_>> = mount::decode_list(d)?;
            let named =
                |e: &ExportEntry<'_>| (e.directory.0.to_vec(), e.groups.iter().map(|g| text(g.0)).collect());
            Ok(list.iter().map(named).collect())
        })
        .await
    }

    async fn mnt(&self, path: &[u8]) -> Result<mount::MntRes, Error> {
        let args = Dirpath(path);
        self.call(Procedure::Mnt, "MNT", &args, mount::MNT_REPLY_HEAD, mount::decode_mnt).await
    }

    /// The root of an export, if the server accepts calls with the flavor `sec` for it. A server that states no flavors accepts
    /// any, and with AUTH_NONE it accepts callers whom it does not identify.
    fn root(&self, export: &[u8], mounted: &MntOk, sec: SecurityFlavor) -> Result<FileHandle, Error> {
        let flavors = &mounted.flavors;
        let is_accepted = flavors.is_empty()
            || flavors.contains(&sec.number())
            || sec == SecurityFlavor::Sys && flavors.contains(&AUTH_NONE);
        if !is_accepted {
            return Err(Error::SecurityFlavor {
                server: self.connector.server(),
                path: text(export),
                used: sec,
                accepted: flavors.iter().filter_map(|n| SecurityFlavor::from_number(*n)).collect(),
            });
        }
        let long = || Error::BadReply {
            server: self.connector.server(),
            procedure: "MNT",
            reason: "a file handle that is too long".into(),
        };
        FileHandle::new(mounted.handle.as_bytes()).ok_or_else(long)
    }

    async fn call<T>(
        &self,
        procedure: Procedure,
        name: &'static str,
        args: &impl Encode,
        max_head: usize,
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, millrace_xdr::XdrError>,
    ) -> Result<T, Error> {
        let server = || self.connector.server();
        let mut transport = self.transport.lock().await;
        let mut result = self.try_call(&transport.0, procedure, args, max_head).await?;
        let elsewhere = matches!(
            result,
            Err(RpcError::Accept(AcceptError::ProgUnavail | AcceptError::ProgMismatch { .. }))
        );
        if elsewhere && !transport.1 {
            *transport = (self.connector.connect_mount().await?.transport, true);
            result = self.try_call(&transport.0, procedure, args, max_head).await?;
        }
        let reply = result.map_err(|error| Error::Rpc { server: server(), procedure: name, error })?;
        decode(&mut reply.results()).map_err(|e| Error::BadReply {
            server: server(),
            procedure: name,
            reason: e.to_string(),
        })
    }

    async fn try_call(
        &self,
        transport: &Arc<dyn Transport>,
        procedure: Procedure,
        args: &impl Encode,
        max_head: usize,
    ) -> Result<Result<millrace_oncrpc::Reply, RpcError>, Error> {
        let mut e = Encoder::new(&self.arena, 512);
        let (program, version) = (mount::PROGRAM, mount::VERSION);
        millrace_oncrpc::call_header(&mut e, program, version, procedure.number(), &self.credential);
        e.put(args);
        let request = Request::new(e.finish()?, ReplySpec { max_head, ..ReplySpec::default() });
        Ok(transport.submit(request).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_below_an_export_only_at_a_slash() {
        assert_eq!(rest_below(b"/data/a/b", b"/data"), Some(&b"a/b"[..]));
        assert_eq!(rest_below(b"/data", b"/data"), Some(&b""[..]));
        assert_eq!(rest_below(b"/data", b"/data/"), Some(&b""[..]));
        assert_eq!(rest_below(b"/database", b"/data"), None);
        assert_eq!(rest_below(b"/x/y", b"/"), Some(&b"x/y"[..]));
        assert_eq!(normalize(b"//a/./b//"), b"/a/b");
        assert_eq!(normalize(b""), b"/");
    }
}
