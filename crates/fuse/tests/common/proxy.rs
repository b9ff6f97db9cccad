//! A proxy between a mount and its server, which observes calls, answers some itself, and delays others.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use millrace_client::ops::{Procedure, Status};
use millrace_nfs::v4::{self, Operation};

/// An NFS call, or its reply: procedures of NFSv3, and READ of NFSv4.
pub struct ObservedCall<'r> {
    pub procedure: Procedure,
    /// User ID in the call's credentials.
    pub uid: u32,
    pub is_reply: bool,
    /// The complete call (also for a reply): header and arguments.
    pub call: &'r [u8],
}

/// The action for a call. A rule delays calls by not returning.
pub enum Action {
    Pass,
    /// Reply with this status instead of the server. Only for procedures whose failure results consist of the
    /// attributes of one object before and after.
    Fail(Status),
}

/// Called for each call, and for each reply (which always passes).
pub trait Rule: Fn(&ObservedCall<'_>) -> Action + Send + Sync + 'static {}

impl<F: Fn(&ObservedCall<'_>) -> Action + Send + Sync + 'static> Rule for F {}

/// Listens on the returned address and forwards connections to `server`.
pub fn start(server: SocketAddr, rule: impl Rule) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let rule = Arc::new(rule);
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, rule) = (client.unwrap(), Arc::clone(&rule));
            if let Ok(server) = TcpStream::connect(server) {
                connection(client, server, rule);
            }
        }
    });
    addr
}

fn connection(client: TcpStream, server: TcpStream, rule: Arc<impl Rule>) {
    let calls = Arc::new(parking_lot::Mutex::new(std::collections::HashMap::<u32, Vec<u8>>::new()));
    let (to_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    // Both threads write to the client.
    let to_client = Arc::new(parking_lot::Mutex::new(to_client));
    let (reply_stream, asked, rule2) = (Arc::clone(&to_client), Arc::clone(&calls), Arc::clone(&rule));
    thread::spawn(move || {
        let done = forward_records(client, |record| {
            if let Some(seen) = parse_call(record, false) {
                asked.lock().insert(word_at(record, 0), record.to_vec());
                if let Action::Fail(status) = rule(&seen) {
                    // MSG_ACCEPTED, no verifier, SUCCESS; the NFS status without attributes.
                    let reply = [word_at(record, 0), 1, 0, 0, 0, 0, status as u32, 0, 0];
                    return send(&mut *reply_stream.lock(), reply.map(u32::to_be_bytes).as_flattened());
                }
            }
            send(&mut &to_server, record)
        });
        let _ = to_server.shutdown(Shutdown::Both);
        done
    });
    thread::spawn(move || {
        let done = forward_records(server, |record| {
            let call = calls.lock().remove(&word_at(record, 0));
            if let Some(seen) = call.as_deref().and_then(|call| parse_call(call, true)) {
                rule2(&seen);
            }
            send(&mut *to_client.lock(), record)
        });
        let _ = to_client.lock().shutdown(Shutdown::Both);
        done
    });
}

/// Passes each record to `each`, until the connection or `each` ends.
fn forward_records(mut from: TcpStream, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    loop {
        let mut record = Vec::new();
        loop {
            let mut mark = [0; 4];
            from.read_exact(&mut mark)?;
            let mark = u32::from_be_bytes(mark);
            let start = record.len();
            record.resize(start + (mark & 0x7fff_ffff) as usize, 0);
            from.read_exact(&mut record[start..])?;
            if mark & 0x8000_0000 != 0 {
                break;
            }
        }
        each(&record)?;
    }
}

fn send(to: &mut impl Write, record: &[u8]) -> io::Result<()> {
    to.write_all(&[&(record.len() as u32 | 0x8000_0000).to_be_bytes(), record].concat())
}

fn word_at(record: &[u8], i: usize) -> u32 {
    record.get(i * 4..i * 4 + 4).map_or(0, |b| u32::from_be_bytes(b.try_into().unwrap()))
}

/// Parses an NFS call with AUTH_SYS: XID, CALL, 2, program, version, procedure; flavor and length of the
/// credentials, stamp, machine name, user.
fn parse_call(call: &[u8], is_reply: bool) -> Option<ObservedCall<'_>> {
    if word_at(call, 3) != millrace_client::nfs::v3::PROGRAM {
        return None;
    }
    let procedure = match word_at(call, 4) {
        v4::VERSION => read_of_v4(call)?,
        _ => Procedure::try_from(word_at(call, 5)).ok()?,
    };
    let name_words = word_at(call, 9).div_ceil(4) as usize;
    Some(ObservedCall { procedure, uid: word_at(call, 10 + name_words), is_reply, call })
}

/// READ, if the call is a COMPOUND of SEQUENCE, PUTFH and READ. Other COMPOUNDs are not observed.
fn read_of_v4(call: &[u8]) -> Option<Procedure> {
    let opaque = |at: usize| at + 1 + word_at(call, at).div_ceil(4) as usize;
    let tag = opaque(opaque(7) + 1); // After the credentials and the verifier.
    let first = opaque(tag) + 2; // After the minor version and the number of operations.
    let second = first + 1 + 8;
    let third = opaque(second + 1);
    let operations = [first, second, third].map(|at| Operation::try_from(word_at(call, at)).ok());
    let read = [Operation::Sequence, Operation::Putfh, Operation::Read].map(Some);
    (operations == read).then_some(Procedure::Read)
}
