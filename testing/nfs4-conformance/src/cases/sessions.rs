//! CREATE_SESSION, BIND_CONN_TO_SESSION, DESTROY_SESSION and RECLAIM_COMPLETE.

use millrace_nfs::v4::*;
use millrace_oncrpc::{AuthSys, Credential};

use crate::{
    compound::{Call, Op, Session, exchange_id, op, putfh, putrootfh, raw, send, sequence},
    group::Group,
};

const SMALL: ChannelAttrs = ChannelAttrs {
    header_pad_size: 0,
    max_request_size: 8192,
    max_response_size: 8192,
    max_response_size_cached: 8192,
    max_operations: 128,
    max_requests: 8,
    rdma_ird: None,
};

/// Arguments of a CREATE_SESSION that succeeds.
fn arguments(client_id: ClientId, sequence: u32) -> CreateSessionArgs<'static> {
    CreateSessionArgs {
        client_id,
        sequence,
        flags: 0,
        fore: SMALL,
        back: SMALL,
        callback_program: 123,
        callback_security: List(vec![CallbackSecurity::None]),
    }
}

fn create(args: CreateSessionArgs<'static>) -> Op {
    op(Operation::CreateSession, args)
}

/// A new client ID and its sequence number.
async fn client(c: &impl Call, owner: &'static [u8]) -> (ClientId, u32) {
    let results = send(c, 1, &[exchange_id(owner, [1; 8])]).await;
    let ok: ExchangeIdOk<'_> = results.take(Operation::ExchangeId);
    (ok.client_id, ok.sequence)
}

async fn created(c: &impl Call, args: CreateSessionArgs<'static>) -> Result<CreateSessionOk, Status> {
    let results = send(c, 1, &[create(args)]).await;
    if results.status == Status::Ok {
        Ok(results.take(Operation::CreateSession))
    } else {
        Err(results.status)
    }
}

fn at(session: SessionId, number: u32) -> Op {
    sequence(SequenceArgs { session, sequence: number, slot: 0, highest_slot: 0, cache_this: false })
}

fn destroy(session: SessionId) -> Op {
    op(Operation::DestroySession, DestroySessionArgs { session })
}

pub(super) async fn run(g: &mut Group<'_, impl Call>) {
    order(g).await;
    channels(g).await;
    principals(g).await;
    security(g).await;
    in_a_session(g).await;
    bind(g).await;
    destruction(g).await;
    reclaims(g).await;
}

async fn order(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let unknown = ClientId { number: 0x1234_5678_9abc_def0 };
    g.check_alone(
        "CREATE_SESSION of an unknown client",
        Status::StaleClientid,
        &[create(arguments(unknown, 256))],
    )
    .await;
    let (client, n) = client(c, b"order").await;
    let status = async |number| created(c, arguments(client, number)).await.map(drop);
    g.record(
        "CREATE_SESSION before the first number",
        Err::<(), _>(Status::SeqMisordered),
        status(n - 1).await,
    );
    g.record(
        "CREATE_SESSION after the next number",
        Err::<(), _>(Status::SeqMisordered),
        status(n + 1).await,
    );
    let first = created(c, arguments(client, n)).await;
    g.record("csr_sequence", Ok::<_, Status>(n), first.as_ref().map(|ok| ok.sequence).map_err(|e| *e));
    let again = created(c, arguments(client, n)).await;
    g.record("CREATE_SESSION is repeated", true, first == again);
    g.record("CREATE_SESSION skips a number", Err::<(), _>(Status::SeqMisordered), status(n + 2).await);
    g.record(
        "CREATE_SESSION before the last number",
        Err::<(), _>(Status::SeqMisordered),
        status(n - 1).await,
    );
    g.record("a second session", Ok::<(), Status>(()), status(n + 1).await);
    let more = [create(arguments(client, n + 2)), putrootfh()];
    g.check_alone("CREATE_SESSION is not the only operation", Status::NotOnlyOp, &more).await;
    let flags = create(CreateSessionArgs { flags: 0xf, ..arguments(client, n + 2) });
    g.check_alone("CREATE_SESSION with undefined flags", Status::Inval, &[flags]).await;
    // Two elements in the list of RDMA parameters.
    let words: &'static [u32] = &[43, 0, 0, 0, 0, 0, 8192, 8192, 8192, 128, 8, 2, 13, 57];
    g.check_alone("CREATE_SESSION with two RDMA parameters", Status::BadXdr, &[raw(words)]).await;
}

async fn channels(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let (client, n) = client(c, b"channels").await;
    let too_small = [
        ("requests of 20 bytes", ChannelAttrs { max_request_size: 20, ..SMALL }, SMALL),
        ("replies of 0 bytes", ChannelAttrs { max_response_size: 0, ..SMALL }, SMALL),
        ("callbacks of 10 bytes", SMALL, ChannelAttrs { max_request_size: 10, ..SMALL }),
        ("one operation in a callback", SMALL, ChannelAttrs { max_operations: 1, ..SMALL }),
    ];
    for (case, fore, back) in too_small {
        // No rejected CREATE_SESSION consumes the sequence number.
        for _ in 0..2 {
            let got = created(c, CreateSessionArgs { fore, back, ..arguments(client, n) }).await.map(drop);
            g.record(case, Err::<(), _>(Status::TooSmall), got);
        }
    }
    // A server limits the slots of a client.
    let many =
        CreateSessionArgs { fore: ChannelAttrs { max_requests: 500, ..SMALL }, ..arguments(client, n) };
    let granted = created(c, many).await.map(|ok| ok.fore.max_requests < 500);
    g.record("fewer slots than 500 requested ones", Ok::<_, Status>(true), granted);
    let n = n + 1;
    let small = ChannelAttrs { max_request_size: 400, max_response_size: 400, ..SMALL };
    let ok = created(c, CreateSessionArgs { fore: small, ..arguments(client, n) }).await;
    let granted = ok.map(|ok| (ok.fore.max_request_size, ok.fore.max_response_size));
    g.record("requests and replies of 400 bytes", Ok::<_, Status>((400, 400)), granted);
    let greedy = ChannelAttrs {
        max_request_size: u32::MAX,
        max_response_size: u32::MAX,
        max_requests: 5000,
        max_operations: u32::MAX,
        ..SMALL
    };
    let ok = created(c, CreateSessionArgs { fore: greedy, ..arguments(client, n + 1) }).await;
    let lowered = ok.map(|ok| {
        let fore = ok.fore;
        fore.max_request_size < u32::MAX && fore.max_response_size < u32::MAX && fore.max_requests < 5000
    });
    g.record("limits are lowered", Ok::<_, Status>(true), lowered);
    let rdma = ChannelAttrs { rdma_ird: Some(57), ..SMALL };
    let ok = created(c, CreateSessionArgs { fore: rdma, back: rdma, ..arguments(client, n + 2) }).await;
    g.record("one RDMA parameter", Ok::<(), Status>(()), ok.map(drop));
}

async fn principals(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let other = c.with(Credential::Sys(AuthSys { uid: 1111, gid: 37, ..AuthSys::default() }));
    let (client, n) = client(c, b"principals").await;
    for _ in 0..2 {
        let got = created(&other, arguments(client, n)).await.map(drop);
        g.record("another principal confirms a client", Err::<(), _>(Status::ClidInuse), got);
    }
    let got = created(c, arguments(client, n)).await.map(drop);
    g.record("the principal confirms its client", Ok::<(), Status>(()), got);
    let got = created(&other, arguments(client, n + 1)).await.map(drop);
    g.record("another principal adds a session", Ok::<(), Status>(()), got);
}

async fn security(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let (client, n) = client(c, b"security").await;
    let sys = CallbackSecurity::Sys(millrace_nfs::v4::AuthSys {
        stamp: 5,
        machine_name: Opaque(b"machine"),
        uid: 7,
        gid: 11,
        gids: List(vec![13, 17]),
    });
    let lists = [
        ("none", vec![]),
        ("AUTH_NONE", vec![CallbackSecurity::None]),
        ("AUTH_SYS", vec![sys.clone()]),
        ("AUTH_NONE and AUTH_SYS", vec![CallbackSecurity::None, sys]),
    ];
    for (number, (case, list)) in (n..).zip(lists) {
        let callback_security = List(list);
        let args = CreateSessionArgs { callback_security, ..arguments(client, number) };
        let got = created(c, args).await.map(drop);
        g.record(&format!("security of callbacks: {case}"), Ok::<(), Status>(()), got);
    }
}

async fn in_a_session(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let (client, n) = client(c, b"in a session").await;
    let results = g.send([create(arguments(client, n))]).await;
    g.record("CREATE_SESSION after SEQUENCE", Status::Ok, results.status);
    let ok: CreateSessionOk = results.take(Operation::CreateSession);
    g.check_alone("the session of a CREATE_SESSION after SEQUENCE", Status::Ok, &[at(ok.session, 1)]).await;
    let again = created(c, arguments(client, n)).await;
    g.record("CREATE_SESSION is repeated without SEQUENCE", Ok::<_, Status>(ok), again);
}

async fn bind(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let (client, n) = client(c, b"bind").await;
    let session = created(c, arguments(client, n)).await.unwrap().session;
    let bind = |session, direction: u32| -> Op {
        Box::new(move |e| {
            e.put(&Operation::BindConnToSession);
            e.put::<SessionId>(&session);
            e.put_u32(direction);
            e.put_bool(false);
        })
    };
    for (requested, expected) in [
        (RequestedDirection::Fore, Direction::Fore.number()),
        (RequestedDirection::Back, Direction::Back.number()),
        (RequestedDirection::ForeOrBoth, Direction::Both.number()),
        (RequestedDirection::BackOrBoth, Direction::Both.number()),
    ] {
        let results = send(c, 1, &[bind(session, requested.number())]).await;
        let got = match results.status {
            // The last words are the direction, which the Linux kernel's server encodes as 7, and a boolean.
            Status::Ok => Ok(results.bytes().rchunks(4).nth(1).map_or(0, word)),
            status => Err(status),
        };
        g.record(&format!("BIND_CONN_TO_SESSION {requested:?}"), Ok::<_, Status>(expected), got);
    }
    let unknown = SessionId(*b"Bad Session Id\0\0");
    g.check_alone("BIND_CONN_TO_SESSION of an unknown session", Status::BadSession, &[bind(unknown, 1)])
        .await;
    g.check_alone("BIND_CONN_TO_SESSION in no direction", Status::BadXdr, &[bind(session, 0)]).await;
    let more = [bind(session, 1), putrootfh()];
    g.check_alone("BIND_CONN_TO_SESSION is not the only operation", Status::NotOnlyOp, &more).await;
    g.check("BIND_CONN_TO_SESSION after SEQUENCE", Status::NotOnlyOp, [bind(session, 1)]).await;
}

/// A word of a message.
fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().unwrap())
}

async fn destruction(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let (client, n) = client(c, b"destruction").await;
    let mut sessions = Vec::new();
    for number in n..n + 3 {
        sessions.push(created(c, arguments(client, number)).await.unwrap().session);
    }
    let [one, two, three] = [sessions[0], sessions[1], sessions[2]];
    let unknown = SessionId([7; 16]);
    g.check_alone("DESTROY_SESSION of an unknown session", Status::BadSession, &[destroy(unknown)]).await;
    g.check_alone(
        "DESTROY_SESSION is not the only operation",
        Status::NotOnlyOp,
        &[destroy(one), putrootfh()],
    )
    .await;
    let early = [at(one, 1), destroy(one), putrootfh()];
    g.check_alone("DESTROY_SESSION of its session is not the last operation", Status::NotOnlyOp, &early)
        .await;
    g.check_alone("DESTROY_SESSION of another session", Status::Ok, &[at(one, 2), destroy(two)]).await;
    g.check_alone("DESTROY_SESSION of its session", Status::Ok, &[at(one, 3), destroy(one)]).await;
    g.check_alone("SEQUENCE of a destroyed session", Status::BadSession, &[at(one, 4)]).await;
    g.check_alone("DESTROY_SESSION", Status::Ok, &[destroy(three)]).await;
    g.check_alone("DESTROY_SESSION twice", Status::BadSession, &[destroy(three)]).await;
}

async fn reclaims(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let s = Session::start(c, b"reclaims").await;
    let complete = |one_fs| op(Operation::ReclaimComplete, ReclaimCompleteArgs { one_fs });
    let open = || crate::compound::open(b"o", "early", 3, 0, true);
    let got = s.status(c, [putfh(&g.dir), open()]).await;
    g.record("OPEN before RECLAIM_COMPLETE", Status::Grace, got);
    let got = s.status(c, [complete(true)]).await;
    g.record("RECLAIM_COMPLETE of a file system without file handle", Status::NoFileHandle, got);
    let got = s.status(c, [putrootfh(), complete(true)]).await;
    g.record("RECLAIM_COMPLETE of a file system", Status::Ok, got);
    for (case, expected) in [("first", Status::Ok), ("second", Status::CompleteAlready)] {
        let got = s.status(c, [complete(false)]).await;
        g.record(&format!("the {case} RECLAIM_COMPLETE"), expected, got);
    }
    let got = s.status(c, [putfh(&g.dir), open()]).await;
    g.record("OPEN after RECLAIM_COMPLETE", Status::Ok, got);
}
