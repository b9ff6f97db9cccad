//! A client that sends arbitrary bytes in arbitrary segments, with pauses, to a server over TCP.

use std::{net::SocketAddr, time::Duration};

use millrace_client::Proto;
use millrace_runtime::{RuntimeExt, RuntimeRef};

use super::{
    calls::calls,
    scene::{Kind, Net, RDMA, Scene, TCP, server},
    wire::{Wire, record},
};
use crate::{
    bytes::{Input, operations},
    targets::iwarp::framed,
};

const HOST: u8 = 1;
/// Maximum number of operations of one input.
const OPERATIONS: usize = 64;
/// Kinds of operations.
const BYTES: u8 = 0;
const RECORD: u8 = 1;
const PAUSE: u8 = 2;
const READ: u8 = 3;
const SHUT_DOWN: u8 = 4;
const RESET: u8 = 5;
const CLOSE: u8 = 6;
const FPDU: u8 = 7;
const DRIBBLE: u8 = 8;
const KINDS: u8 = 9;

async fn attack(net: Net, rt: RuntimeRef, to: SocketAddr, script: &[u8]) {
    let from = net.host(HOST);
    let mut wire = Wire::connect(&rt, &from, to).await;
    let mut script = Input::new(script);
    for _ in 0..OPERATIONS {
        let Some((kind, operand)) = script.operation() else { break };
        match kind % KINDS {
            BYTES => drop(wire.write(operand).await),
            RECORD => drop(wire.write(&record(operand)).await),
            PAUSE => rt.sleep(Duration::from_millis(u64::from(Input::new(operand).u16()))).await,
            READ => drop(wire.read(Duration::from_millis(10)).await),
            SHUT_DOWN => wire.shut_down(),
            RESET => {
                wire.reset();
                wire = Wire::connect(&rt, &from, to).await;
            }
            CLOSE => wire = Wire::connect(&rt, &from, to).await,
            FPDU => drop(wire.write(&framed(operand)).await),
            _ => {
                for byte in operand.iter().take(200) {
                    wire.write(&[*byte]).await;
                    rt.sleep(Duration::from_micros(100)).await;
                }
            }
        }
    }
}

fn run(input: &[u8], proto: Proto, port: u16) {
    let mut input = Input::new(input);
    let scene = Scene::new(Kind::new(input.u8(), proto));
    scene.run(attack(scene.net.clone(), scene.rt.clone(), server(port), input.rest()));
}

/// The TCP port. Input: flags of the server, and operations.
pub(in crate::targets) mod tcp_server {
    use super::*;

    /// Executes the target with `input`.
    pub(in crate::targets) fn run(input: &[u8]) {
        super::run(input, Proto::Tcp, TCP);
    }

    /// Calls in records, in fragments, byte by byte, with and without reading the replies.
    pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
        let calls = calls();
        let read: &[u8] = &[];
        let mut out = Vec::new();
        for flags in [0, 1] {
            let each = calls.iter().flat_map(|call| [(RECORD, &call[..]), (READ, read)]);
            out.push([&[flags][..], &operations(&each.collect::<Vec<_>>())].concat());
            let burst: Vec<(u8, &[u8])> = calls.iter().map(|call| (RECORD, &call[..])).collect();
            out.push([&[flags][..], &operations(&burst)].concat());
        }
        let whole = record(&calls[6]);
        let (start, end) = whole.split_at(50);
        let script: [(u8, &[u8]); 8] = [
            (BYTES, start),
            (PAUSE, &[1, 0]),
            (BYTES, end),
            (DRIBBLE, &whole),
            (SHUT_DOWN, read),
            (READ, read),
            (CLOSE, read),
            (BYTES, start),
        ];
        out.push([&[0][..], &operations(&script)].concat());
        let script: [(u8, &[u8]); 4] =
            [(BYTES, start), (PAUSE, &[0x27, 0x10]), (RESET, read), (BYTES, &whole)];
        out.push([&[0][..], &operations(&script)].concat());
        out
    }
}

/// The RDMA port. Input: flags of the server, and operations.
pub(in crate::targets) mod rdma_server_stream {
    use millrace_rpcrdma::{Body, Header, Lists};

    use super::*;
    use crate::bytes::{from_hex, words};

    /// Executes the target with `input`.
    pub(in crate::targets) fn run(input: &[u8]) {
        super::run(input, Proto::Rdma, RDMA);
    }

    /// MPA start-up with private data, and inline calls; a Read Request and an RDMA Write.
    pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
        let depths_and_private = from_hex("0020 0020 f6ab0e18 01000303");
        let start = [&b"MPA ID Req Frame\x10\x02\0\x0c"[..], &depths_and_private].concat();
        let send = |msn: u32, message: &[u8]| {
            let mut header = vec![0; 28];
            Header::new(msn, 4, Body::Msg(Lists::default())).encode(&mut header);
            [&[0x41, 0x43][..], &words(&[0, 0, msn, 0]), &header, message].concat()
        };
        let sends: Vec<Vec<u8>> = (1..).zip(calls()).map(|(n, call)| send(n, call)).collect();
        let read: &[u8] = &[];
        let mut script = vec![(BYTES, &start[..])];
        script.extend(sends.iter().flat_map(|s| [(FPDU, &s[..]), (READ, read)]));
        let mut out = vec![[&[0][..], &operations(&script)].concat()];
        let write = [&[0xc1, 0x40][..], &words(&[1, 0, 0]), &[1; 64]].concat();
        let request = [&[0x41, 0x41][..], &words(&[0, 1, 1, 0, 7, 0, 0, 64, 1, 0, 0])].concat();
        for ulpdu in [&write, &request] {
            let script: [(u8, &[u8]); 4] = [(BYTES, &start), (FPDU, &sends[0]), (FPDU, ulpdu), (RESET, read)];
            out.push([&[1][..], &operations(&script)].concat());
        }
        let script: [(u8, &[u8]); 3] = [(DRIBBLE, &start), (PAUSE, &[0x4e, 0x20]), (SHUT_DOWN, read)];
        out.push([&[0][..], &operations(&script)].concat());
        out
    }
}
