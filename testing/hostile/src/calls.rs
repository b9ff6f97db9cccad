//! A minimal implementation of RPC-over-RDMA, ONC RPC, MOUNT and NFS that can access a file's data.

use std::io;

use crate::{Event, Peer};

const MOUNT: [u32; 3] = [100_005, 3, 1];
const LOOKUP: [u32; 3] = [100_003, 3, 3];
pub(crate) const NULL: [u32; 3] = [100_003, 3, 0];
pub(crate) const READ: [u32; 3] = [100_003, 3, 6];
pub(crate) const REMOVE: [u32; 3] = [100_003, 3, 12];
pub(crate) const READDIR: [u32; 3] = [100_003, 3, 16];

/// Memory of the server that a Read chunk of a reply names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Steering tag.
    pub tag: u32,
    /// Length in bytes.
    pub length: u32,
    /// Tagged offset.
    pub offset: u64,
}

/// An NFS client that sends no RDMA_DONE unless the caller requests it with [`Self::done`].
pub struct Files {
    /// The connection.
    pub peer: Peer,
    xid: u32,
}

pub(crate) fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u32).to_be_bytes().to_vec();
    out.extend(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}

pub(crate) fn word(bytes: &[u8], at: usize) -> io::Result<u32> {
    let short = || io::Error::new(io::ErrorKind::InvalidData, "truncated reply");
    let b = bytes.get(at..).and_then(|b| b.first_chunk()).ok_or_else(short)?;
    Ok(u32::from_be_bytes(*b))
}

/// A transport header of four words with three empty lists, followed by the call.
fn call(xid: u32, procedure: [u32; 3], arguments: &[u8]) -> Vec<u8> {
    [words(&[xid, 1, 32, 0, 0, 0, 0]), rpc(xid, procedure, arguments)].concat()
}

/// An RPC call with the credentials of root.
pub(crate) fn rpc(xid: u32, [program, version, procedure]: [u32; 3], arguments: &[u8]) -> Vec<u8> {
    // AUTH_SYS: stamp, no machine name, root, no supplementary groups.
    let credential = [1, 20, 0, 0, 0, 0, 0, 0, 0];
    [words(&[xid, 0, 2, program, version, procedure]), words(&credential), arguments.to_vec()].concat()
}

impl Files {
    /// Uses the connection `peer`.
    pub fn new(peer: Peer) -> Self {
        Self { peer, xid: 0x0666_0000 }
    }

    /// Sends a call, and returns the whole reply including its transport header.
    fn ask(&mut self, procedure: [u32; 3], arguments: &[u8]) -> io::Result<Vec<u8>> {
        self.xid += 1;
        self.peer.send(&call(self.xid, procedure, arguments))?;
        loop {
            match self.peer.event()? {
                Event::Send(reply, _) => return Ok(reply),
                Event::Closed | Event::Terminate(..) => return Err(io::ErrorKind::ConnectionReset.into()),
                _ => {}
            }
        }
    }

    /// The results of an inline reply: the bytes after its status word.
    fn results(&mut self, procedure: [u32; 3], arguments: &[u8]) -> io::Result<Vec<u8>> {
        let reply = self.ask(procedure, arguments)?;
        let refused = || io::Error::new(io::ErrorKind::InvalidData, "the server rejected a call");
        // RDMA_MSG without lists, accepted reply, status OK.
        let fine = [(12, 0), (48, 0), (52, 0)];
        if fine.iter().any(|&(at, value)| word(&reply, at).ok() != Some(value)) {
            return Err(refused());
        }
        reply.get(56..).map(<[u8]>::to_vec).ok_or_else(refused)
    }

    fn handle(results: &[u8]) -> io::Result<Vec<u8>> {
        let length = word(results, 0)? as usize;
        let short = || io::Error::new(io::ErrorKind::InvalidData, "truncated file handle");
        results.get(4..4 + length).map(<[u8]>::to_vec).ok_or_else(short)
    }

    /// Returns the root handle of an export.
    ///
    /// # Errors
    /// The export does not exist.
    pub fn mount(&mut self, export: &str) -> io::Result<Vec<u8>> {
        Self::handle(&self.results(MOUNT, &opaque(export.as_bytes()))?)
    }

    /// Returns the handle of a file.
    ///
    /// # Errors
    /// The file does not exist.
    pub fn lookup(&mut self, directory: &[u8], name: &str) -> io::Result<Vec<u8>> {
        let arguments = [opaque(directory), opaque(name.as_bytes())].concat();
        Self::handle(&self.results(LOOKUP, &arguments)?)
    }

    /// READ in the Read-Read design: returns the memory in which the server exposes the data, until
    /// [`Self::done`]. `None` if the server reports an error.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn read(&mut self, file: &[u8], offset: u64, count: u32) -> io::Result<Option<Source>> {
        let arguments = [opaque(file), offset.to_be_bytes().to_vec(), words(&[count])].concat();
        let reply = self.ask(READ, &arguments)?;
        if word(&reply, 12)? > 1 || word(&reply, 16)? != 1 {
            return Ok(None);
        }
        let (tag, length) = (word(&reply, 24)?, word(&reply, 28)?);
        let offset = u64::from(word(&reply, 32)?) << 32 | u64::from(word(&reply, 36)?);
        Ok(Some(Source { tag, length, offset }))
    }

    /// Acknowledges the last READ (RDMA_DONE).
    ///
    /// # Errors
    /// The connection has ended.
    pub fn done(&mut self) -> io::Result<()> {
        self.peer.send(&words(&[self.xid, 1, 32, 3]))
    }

    /// Reads the server's memory; returns the data, or `None` if the server ended the connection instead.
    ///
    /// # Errors
    /// The server does neither.
    pub fn steal(&mut self, from: Source) -> io::Result<Option<Vec<u8>>> {
        self.peer.read(from.tag, from.offset, from.length)?;
        loop {
            match self.peer.event()? {
                Event::ReadResponse(bytes) => return Ok(Some(bytes)),
                Event::Terminate(..) | Event::Closed => return Ok(None),
                _ => {}
            }
        }
    }
}
