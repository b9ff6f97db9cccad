//! A client over TCP and a proxy that changes the server's replies: one operation for each reply.

use std::{pin::pin, time::Duration};

use futures::future::{Either, select};
use millrace_client::{Error, Proto, handles::Client, ops::SetAttributes};
use millrace_runtime::{RuntimeExt, RuntimeRef};

use super::{
    scene::{Kind, Net, Scene, TCP, server},
    wire::{Wire, record, take_record},
};
use crate::bytes::{Input, operations};

const HOST: u8 = 1;
const PROXY: u8 = 3;
/// More than the server's idle limit.
const SILENCE: Duration = Duration::from_secs(3600);
/// Kinds of operations.
const PASS: u8 = 0;
const FLIP: u8 = 1;
const SET_WORD: u8 = 2;
const TRUNCATE: u8 = 3;
const EXTEND: u8 = 4;
const REPLACE: u8 = 5;
const TWICE: u8 = 6;
const DROP: u8 = 7;
const DELAY: u8 = 8;
const RESET: u8 = 9;
const RAW: u8 = 10;
const KINDS: u8 = 11;

/// Accepts one connection after the other and forwards it to the server.
async fn proxy(net: Net, rt: RuntimeRef, script: &[u8]) {
    let mut script = Input::new(script);
    let host = net.host(PROXY);
    let mut listener = host.listen(([10, 0, 1, PROXY], TCP).into()).expect("an address");
    while let Ok(stream) = listener.accept().await {
        let mut client = Wire::over(&rt, stream);
        let mut server = Wire::connect(&rt, &host, server(TCP)).await;
        relay(&rt, &mut client, &mut server, &mut script).await;
    }
}

async fn relay(rt: &RuntimeRef, client: &mut Wire, server: &mut Wire, script: &mut Input<'_>) {
    let mut replies = Vec::new();
    loop {
        // A dropped read has consumed nothing.
        let next = {
            let (calls, more) = (pin!(client.read(SILENCE)), pin!(server.read(SILENCE)));
            match select(calls, more).await {
                Either::Left((calls, _)) => Either::Left(calls),
                Either::Right((more, _)) => Either::Right(more),
            }
        };
        match next {
            Either::Left(Some(calls)) if server.write(&calls).await => {}
            Either::Right(Some(more)) => replies.extend(more),
            _ => return,
        }
        while let Some(reply) = take_record(&mut replies) {
            let (kind, operand) = script.operation().unwrap_or((PASS, &[]));
            if !change(rt, client, reply, kind % KINDS, operand).await {
                return;
            }
        }
    }
}

/// Forwards `reply`, changed. Returns `false` to end the connection.
async fn change(rt: &RuntimeRef, client: &mut Wire, mut reply: Vec<u8>, kind: u8, operand: &[u8]) -> bool {
    let mut fields = Input::new(operand);
    match kind {
        FLIP => {
            for pair in operand.chunks_exact(2) {
                let at = usize::from(pair[0]) % reply.len().max(1);
                if let Some(byte) = reply.get_mut(at) {
                    *byte ^= pair[1];
                }
            }
        }
        SET_WORD => {
            let at = usize::from(fields.u8()) * 4;
            let word = fields.rest().first_chunk::<4>().copied();
            if let (Some(word), Some(place)) = (word, reply.get_mut(at..).and_then(|r| r.first_chunk_mut())) {
                *place = word;
            }
        }
        TRUNCATE => reply.truncate(usize::from(fields.u16())),
        EXTEND => reply.extend(operand),
        REPLACE => {
            // The transaction ID is not changed, so that the reply matches a call.
            reply.truncate(4);
            reply.extend(operand);
        }
        TWICE => drop(client.write(&record(&reply)).await),
        DROP => return true,
        DELAY => rt.sleep(Duration::from_millis(u64::from(fields.u16()))).await,
        RESET => {
            client.reset();
            return false;
        }
        RAW => return client.write(operand).await,
        _ => {}
    }
    client.write(&record(&reply)).await
}

/// Makes calls of many procedures. Their errors are ignored, because the proxy changes the replies.
async fn work(net: Net, rt: RuntimeRef) {
    let to = ([10, 0, 1, PROXY], TCP).into();
    let Ok(client) = net.mount_at(&rt, HOST, Proto::Tcp, to, "/data").await else { return };
    let root = client.root();
    drop(client.mkdir(root, "directory", SetAttributes::default()).await);
    drop(files(&client).await);
    drop(client.symlink(root, "link", "to/there", SetAttributes::default()).await);
    if let Ok(link) = client.lookup(root, "link").await {
        drop(client.readlink(link.handle).await);
    }
    drop(client.readdir(root).await);
    drop(client.rename(root, "file", root, "other").await);
    drop(client.fsstat(root).await);
    drop(client.remove(root, "other").await);
    client.close();
}

async fn files(client: &Client) -> Result<(), Error> {
    let file = client.create_file("file", 0o644).await?;
    file.write(0, &[b'w'; 9000]).await?;
    file.commit().await?;
    let mut data = vec![0; 9000];
    drop(file.read(0, &mut data).await);
    file.close().await
}

/// Executes the target with `input`.
pub(in crate::targets) fn run(input: &[u8]) {
    let scene = Scene::new(Kind { read_only: false, proto: Proto::Tcp });
    let (net, rt) = (&scene.net, &scene.rt);
    scene.run(async {
        let proxy = Box::pin(proxy(net.clone(), rt.clone(), input));
        match select(proxy, Box::pin(work(net.clone(), rt.clone()))).await {
            Either::Left(_) => panic!("the proxy ended"),
            Either::Right(((), proxy)) => drop(proxy),
        }
    });
}

/// Unchanged replies; one change of each kind, at different replies.
pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
    let pass: (u8, &[u8]) = (PASS, &[]);
    let changes: [(u8, &[u8]); 12] = [
        (FLIP, &[24, 1, 40, 128]),
        (SET_WORD, &[7, 0xff, 0xff, 0xff, 0xff]),
        (SET_WORD, &[0, 0, 0, 0, 1]),
        (TRUNCATE, &[0, 26]),
        (EXTEND, &[0; 40]),
        (REPLACE, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 70]),
        (TWICE, &[]),
        (DROP, &[]),
        (DELAY, &[0x20, 0]),
        (RESET, &[]),
        (RAW, &[0x80, 0, 0, 0]),
        (RAW, &[0x7f, 0xff, 0xff, 0xff]),
    ];
    let mut out = vec![Vec::new()];
    for (n, change) in changes.iter().enumerate() {
        for at in [n % 4, 4 + n] {
            let mut script = vec![pass; at];
            script.push(*change);
            out.push(operations(&script));
        }
    }
    out
}
