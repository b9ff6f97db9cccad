//! Somebody between a mount and its server, who sees the calls, answers some for the server, and holds others.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use millrace_nfs::v3::{Procedure, Status};

/// An NFS call on its way to the server, or its reply on its way back.
pub struct Seen<'r> {
    pub procedure: Procedure,
    /// The user of the call's credential.
    pub uid: u32,
    pub is_reply: bool,
    /// All of the call (also with the reply): header and arguments.
    pub call: &'r [u8],
}

/// What becomes of a call. A rule holds calls by not returning.
pub enum Act {
    Pass,
    /// Answer it so, instead of the server. Only for procedures whose failures carry nothing but attributes of one
    /// object before and after.
    Fail(Status),
}

/// What is asked about each call, and about each reply (which always passes).
pub trait Rule: Fn(&Seen<'_>) -> Act + Send + Sync + 'static {}

impl<F: Fn(&Seen<'_>) -> Act + Send + Sync + 'static> Rule for F {}

/// Stands between everybody who connects to the address that it gives, and `server`.
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
    let (answers, asked, rule2) = (Arc::clone(&to_client), Arc::clone(&calls), Arc::clone(&rule));
    thread::spawn(move || {
        let done = pump(client, |record| {
            if let Some(seen) = look(record, false) {
                asked.lock().insert(word(record, 0), record.to_vec());
                if let Act::Fail(status) = rule(&seen) {
                    // Accepted, no verifier, success of RPC; the status, and no attributes.
                    let reply = [word(record, 0), 1, 0, 0, 0, 0, status as u32, 0, 0];
                    return send(&mut *answers.lock(), reply.map(u32::to_be_bytes).as_flattened());
                }
            }
            send(&mut &to_server, record)
        });
        let _ = to_server.shutdown(Shutdown::Both);
        done
    });
    thread::spawn(move || {
        let done = pump(server, |record| {
            let call = calls.lock().remove(&word(record, 0));
            if let Some(seen) = call.as_deref().and_then(|call| look(call, true)) {
                rule2(&seen);
            }
            send(&mut *to_client.lock(), record)
        });
        let _ = to_client.lock().shutdown(Shutdown::Both);
        done
    });
}

/// Gives each record that comes to `each`, until the connection or `each` ends.
fn pump(mut from: TcpStream, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
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

fn word(record: &[u8], i: usize) -> u32 {
    record.get(i * 4..i * 4 + 4).map_or(0, |b| u32::from_be_bytes(b.try_into().unwrap()))
}

/// What a call is, if it is one of NFS as AUTH_SYS: XID, CALL, 2, program, version, procedure; flavor and length of the
/// credential, stamp, machine's name, user.
fn look(call: &[u8], is_reply: bool) -> Option<Seen<'_>> {
    if word(call, 3) != millrace_nfs::v3::PROGRAM {
        return None;
    }
    let procedure = Procedure::try_from(word(call, 5)).ok()?;
    let name_words = word(call, 9).div_ceil(4) as usize;
    Some(Seen { procedure, uid: word(call, 10 + name_words), is_reply, call })
}
