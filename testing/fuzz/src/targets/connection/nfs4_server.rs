//! A client of NFSv4.2 with a session, over TCP or RDMA, whose COMPOUNDs contain arbitrary operations after a correct
//! SEQUENCE. Input: flags of the server and the transport, and operations of the script. In operations of NFS, the
//! session, client ID, stateid and handle of the seeds are replaced by those of the client.

use std::{mem, sync::Arc, time::Duration};

use millrace_buffer::ArenaConfig;
use millrace_client::Proto;
use millrace_nfs::v4::*;
use millrace_nfs4_conformance::compound::{
    CHANNEL, Compound, Op, create_session, exchange_id, getfh, lookup, op, open, putfh, putrootfh, sequence,
};
use millrace_oncrpc::{
    AuthSys, Credential, Reply, ReplySpec, Request, RpcError, Transport, call_header,
    tcp::{TcpClientConfig, TcpTransport},
};
use millrace_rpcrdma::{Requester, RequesterConfig};
use millrace_runtime::{LocalPort, RuntimeExt, RuntimeRef};
use millrace_xdr::{Arena, Decoder, Encoder};

use super::scene::{FULL, Kind, Net, RDMA, Scene, TCP, server};
use crate::{
    bytes::{Input, operations},
    targets::{nfs4::messages, xdr::view},
};

const HOST: u8 = 1;
/// Maximum number of operations of one script.
const OPERATIONS: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a reply without the data that the transport places, and of that data.
const REPLY: usize = 16 << 10;
const DATA: usize = 64 << 10;
/// Kinds of operations of a script: an operation of NFS, WRITE with a payload, a call with those since the last one, the
/// last call again, a pause, another connection, another incarnation of the client.
const OPERATION: u8 = 0;
const WRITE: u8 = 1;
const CALL: u8 = 2;
const AGAIN: u8 = 3;
const PAUSE: u8 = 4;
const CONNECT: u8 = 5;
const IDENTIFY: u8 = 6;
const KINDS: u8 = 7;
/// Flags of a call: where it begins (two bits), and whether its reply is to be kept.
const ROOT: u8 = 1;
const DIRECTORY: u8 = 2;
const FILE: u8 = 3;
const KEEP: u8 = 4;

enum Connection {
    Tcp(Arc<TcpTransport>),
    Rdma(Arc<Requester>),
}

struct Client {
    net: Net,
    rt: RuntimeRef,
    arena: Arena,
    proto: Proto,
    kind: Kind,
    connection: Option<Connection>,
    incarnation: u8,
    id: ClientId,
    session: SessionId,
    next: u32,
    stateid: Stateid,
    directory: Vec<u8>,
    file: Vec<u8>,
}

impl Client {
    fn new(net: Net, rt: RuntimeRef, kind: Kind, proto: Proto) -> Self {
        Self {
            net,
            rt,
            arena: Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false }),
            proto,
            kind,
            connection: None,
            incarnation: 0,
            id: messages::CLIENT,
            session: messages::SESSION,
            next: 1,
            stateid: messages::STATEID,
            directory: Vec::new(),
            file: Vec::new(),
        }
    }

    async fn connect(&mut self) {
        let arena = self.arena.clone();
        self.connection = match self.proto {
            Proto::Tcp => {
                let stream = self.net.host(HOST).connect(LocalPort::Any, server(TCP)).await;
                let config = TcpClientConfig { timeout: TIMEOUT, ..TcpClientConfig::default() };
                let start = |stream| TcpTransport::start(stream, &self.rt, &arena, config).ok();
                stream.ok().and_then(start).map(Connection::Tcp)
            }
            Proto::Rdma => {
                let config = RequesterConfig { call_timeout: TIMEOUT, ..RequesterConfig::default() };
                let provider = self.net.iwarp(HOST);
                let requester = Requester::connect(&*provider, self.rt.clone(), arena, server(RDMA), config);
                requester.await.ok().map(Connection::Rdma)
            }
        };
    }

    /// The results of a COMPOUND, if it has any. A connection that has failed is replaced before the next call.
    async fn call(&mut self, ops: &[Op]) -> Option<Reply> {
        if self.connection.is_none() {
            self.connect().await;
        }
        let mut e = Encoder::new(&self.arena, 512);
        call_header(&mut e, PROGRAM, VERSION, 1, &Credential::Sys(AuthSys::default()));
        e.put(&Compound { tag: b"", minor_version: 2, ops });
        let payload = self.arena.alloc(DATA).ok();
        let request =
            Request::new(e.finish().ok()?, ReplySpec { max_head: REPLY, payload, ..ReplySpec::default() });
        let reply = match self.connection.as_ref()? {
            Connection::Tcp(transport) => transport.submit(request).await,
            Connection::Rdma(requester) => requester.submit(request).await,
        };
        match reply {
            Ok(reply) => {
                let mut results = reply.results();
                let frame: CompoundRes<'_> = results.get().expect("a reply has results of COMPOUND");
                assert!(frame.results as usize <= ops.len(), "{frame:?}");
                Some(reply)
            }
            Err(RpcError::Accept(_)) => None,
            Err(_) => {
                self.connection = None;
                None
            }
        }
    }

    /// A new incarnation with a session, whose predecessor loses its state, an open file and the handles.
    async fn identify(&mut self) -> Option<()> {
        self.incarnation = self.incarnation.wrapping_add(1);
        let identified = self.call(&[exchange_id(b"fuzz", [self.incarnation; 8])]).await?;
        let mut d = first(&identified, Operation::ExchangeId)?;
        let ok: ExchangeIdOk<'_> = d.get().ok()?;
        self.id = ok.client_id;
        let created = self.call(&[create_session(ok.client_id, ok.sequence, CHANNEL)]).await?;
        let ok: CreateSessionOk = first(&created, Operation::CreateSession)?.get().ok()?;
        (self.session, self.next) = (ok.session, 1);
        let complete = op(Operation::ReclaimComplete, ReclaimCompleteArgs { one_fs: false });
        let full = std::str::from_utf8(FULL).expect("a name");
        let access = if self.kind.read_only { share_access::READ } else { share_access::BOTH };
        self.in_session(false, vec![complete]).await?;
        let to_file =
            vec![putrootfh(), lookup("data"), getfh(), open(b"owner", full, access, 0, false), getfh()];
        let opened = self.in_session(false, to_file).await?;
        let mut d = opened.results();
        let _: CompoundRes<'_> = d.get().ok()?;
        result(&mut d)?;
        let _: SequenceOk = d.get().ok()?;
        result(&mut d)?;
        result(&mut d)?;
        result(&mut d)?;
        self.directory = d.get::<GetfhOk<'_>>().ok()?.handle.to_vec();
        result(&mut d)?;
        self.stateid = d.get::<OpenOk<'_>>().ok()?.stateid;
        result(&mut d)?;
        self.file = d.get::<GetfhOk<'_>>().ok()?.handle.to_vec();
        Some(())
    }

    /// Makes a call with the next SEQUENCE before `ops`.
    async fn in_session(&mut self, cache_this: bool, ops: Vec<Op>) -> Option<Reply> {
        let (session, slot) = (self.session, 0);
        let begin = SequenceArgs { session, sequence: self.next, slot, highest_slot: 0, cache_this };
        self.next = self.next.wrapping_add(1);
        let ops: Vec<Op> = std::iter::once(sequence(begin)).chain(ops).collect();
        self.call(&ops).await
    }

    /// `operation` with the values of this client.
    fn own(&self, operation: &[u8]) -> Vec<u8> {
        let opaque = |bytes: &[u8]| {
            let padding = bytes.len().next_multiple_of(4) - bytes.len();
            [&(bytes.len() as u32).to_be_bytes(), bytes, &vec![0; padding]].concat()
        };
        let pairs = [
            (messages::SESSION.0.to_vec(), self.session.0.to_vec()),
            (messages::CLIENT.number.to_be_bytes().to_vec(), self.id.number.to_be_bytes().to_vec()),
            (messages::STATEID.other.to_vec(), self.stateid.other.to_vec()),
            (opaque(&messages::HANDLE), opaque(&self.file)),
        ];
        replaced(operation, &pairs)
    }
}

/// `bytes` with the second value of a pair for each occurrence of the first.
fn replaced(bytes: &[u8], pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(bytes.len()), bytes);
    while let Some((first, after)) = rest.split_first() {
        let found = pairs.iter().find_map(|(from, to)| Some((rest.strip_prefix(from.as_slice())?, to)));
        rest = match found {
            Some((after, to)) => {
                out.extend_from_slice(to);
                after
            }
            None => {
                out.push(*first);
                after
            }
        };
    }
    out
}

/// Decodes the operation and the status of a result, which is successful.
fn result(d: &mut Decoder<'_>) -> Option<Operation> {
    let operation = d.get().ok()?;
    (d.get::<Status>().ok()? == Status::Ok).then_some(operation)
}

/// The data of the first result, if it is that of `operation`.
fn first(reply: &Reply, operation: Operation) -> Option<Decoder<'_>> {
    let mut d = reply.results();
    let _: CompoundRes<'_> = d.get().ok()?;
    (result(&mut d)? == operation).then_some(d)
}

/// An operation as encoded bytes.
fn encoded(bytes: Vec<u8>) -> Op {
    Box::new(move |e| {
        for word in bytes.chunks(4) {
            let mut whole = [0; 4];
            whole[..word.len()].copy_from_slice(word);
            e.put_u32(u32::from_be_bytes(whole));
        }
    })
}

/// WRITE of `data`, repeated, with any stateid.
fn write(data: &[u8]) -> Op {
    let data = data.repeat(64);
    Box::new(move |e| {
        e.put(&Operation::Write);
        let (stateid, stable) = (Stateid::ANONYMOUS, StableHow::Unstable);
        e.put(&WriteArgs { stateid, offset: 0, stable, data: view(&data).into() });
    })
}

async fn attack(mut client: Client, script: &[u8]) {
    let mut script = Input::new(script);
    client.identify().await;
    let mut ops: Vec<Op> = Vec::new();
    for _ in 0..OPERATIONS {
        let Some((kind, operand)) = script.operation() else { break };
        match kind % KINDS {
            OPERATION => ops.push(encoded(client.own(operand))),
            WRITE => ops.push(write(operand)),
            CALL | AGAIN => {
                let flags = Input::new(operand).u8();
                let start: Vec<Op> = match flags & 3 {
                    ROOT => vec![putrootfh()],
                    DIRECTORY => vec![putfh(&client.directory)],
                    FILE => vec![putfh(&client.file)],
                    _ => Vec::new(),
                };
                if kind % KINDS == AGAIN {
                    client.next = client.next.wrapping_sub(1);
                }
                let all = start.into_iter().chain(mem::take(&mut ops)).collect();
                let reply = client.in_session(flags & KEEP != 0, all).await;
                // The slot is in doubt, or the session is gone.
                if reply.is_none_or(|r| first(&r, Operation::Sequence).is_none()) {
                    client.identify().await;
                }
            }
            PAUSE => client.rt.sleep(Duration::from_millis(Input::new(operand).u16().into())).await,
            CONNECT => client.connection = None,
            _ => drop(client.identify().await),
        }
    }
}

/// Executes the target with `input`.
pub(in crate::targets) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let flags = input.u8();
    let proto = if flags & 4 == 0 { Proto::Tcp } else { Proto::Rdma };
    let kind = Kind::new(flags, proto);
    let scene = Scene::new(kind);
    scene.run(attack(Client::new(scene.net.clone(), scene.rt.clone(), kind, proto), input.rest()));
}

/// Every operation over each transport, on files that can be changed and that cannot.
pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
    let none: &[u8] = &[];
    let mut out = Vec::new();
    for flags in [0, 1, 4, 5, 7] {
        for (start, calls) in [(FILE, messages::operations()), (DIRECTORY, messages::operations())] {
            for call in calls {
                let mut script: Vec<(u8, &[u8])> = Vec::new();
                let begin = [start];
                script.extend(call.iter().map(|operation| (OPERATION, &operation[..])));
                script.push((CALL, &begin));
                // Each alone, as a failure ends a COMPOUND.
                for operation in &call {
                    script.extend([(OPERATION, &operation[..]), (CALL, &begin)]);
                }
                out.push([&[flags][..], &operations(&script)].concat());
            }
        }
        let script: [(u8, &[u8]); 10] = [
            (WRITE, &[b'w'; 150]),
            (CALL, &[FILE | KEEP]),
            (WRITE, &[b'w'; 150]),
            (AGAIN, &[FILE | KEEP]),
            (CONNECT, none),
            (CALL, &[ROOT]),
            (IDENTIFY, none),
            (PAUSE, &[0x10, 0]),
            (WRITE, &[b'x'; 20]),
            (CALL, &[FILE]),
        ];
        out.push([&[flags][..], &operations(&script)].concat());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the client of the target finds is what the seeds are for.
    #[test]
    fn the_client_opens_a_file() {
        for proto in [Proto::Tcp, Proto::Rdma] {
            let kind = Kind::new(1, proto);
            let scene = Scene::new(kind);
            let mut client = Client::new(scene.net.clone(), scene.rt.clone(), kind, proto);
            let done = scene.time.block_on(client.identify());
            assert_eq!(done.expect("it ends"), Some(()), "{proto:?}");
            assert_ne!(client.stateid, messages::STATEID);
        }
    }

    #[test]
    fn each_value_of_the_seeds_is_replaced() {
        let pairs = [(vec![7; 3], vec![1, 7, 7, 7]), (vec![5], vec![]), (vec![1], vec![2])];
        let bytes = [7, 7, 7, 0, 7, 7, 7, 7, 7, 7, 5, 1, 7, 7];
        assert_eq!(replaced(&bytes, &pairs), [1, 7, 7, 7, 0, 1, 7, 7, 7, 1, 7, 7, 7, 2, 7, 7]);
        assert_eq!(replaced(&[], &pairs), [0; 0]);
    }
}
