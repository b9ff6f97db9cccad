//! EXCHANGE_ID (the cases of RFC 8881, 18.35.4) and DESTROY_CLIENTID.

use millrace_nfs::v4::*;
use millrace_oncrpc::{AuthSys, Credential};

use crate::{
    compound::{CHANNEL, Call, Op, create_session, op, putrootfh, raw, send, sequence},
    group::Group,
};

const UPDATE: u32 = exchange_id_flags::UPD_CONFIRMED_REC_A;

fn exchange_id(owner: &str, verifier: u8, flags: u32) -> Op {
    let owner = owner.as_bytes().to_vec();
    Box::new(move |e| {
        e.put(&Operation::ExchangeId);
        e.put(&ExchangeIdArgs {
            owner: ClientOwner { verifier: [verifier; 8], id: Opaque(&owner) },
            flags,
            state_protect: StateProtect::None,
            implementation: None,
        });
    })
}

/// The client ID, sequence number and flags of an EXCHANGE_ID.
async fn identified(c: &impl Call, on: Op) -> Result<(ClientId, u32, u32), Status> {
    let results = send(c, 1, &[on]).await;
    if results.status != Status::Ok {
        return Err(results.status);
    }
    let ok: ExchangeIdOk<'_> = results.take(Operation::ExchangeId);
    Ok((ok.client_id, ok.sequence, ok.flags))
}

fn destroy(client_id: ClientId) -> Op {
    op(Operation::DestroyClientid, DestroyClientidArgs { client_id })
}

pub(super) async fn run(g: &mut Group<'_, impl Call>) {
    flags(g).await;
    records(g).await;
    without_state(g).await;
    restarts(g).await;
    arguments(g).await;
    destruction(g).await;
}

async fn flags(g: &mut Group<'_, impl Call>) {
    let roles = 0x7_0000;
    for (flags, expected) in [
        (0, Ok(true)),
        (exchange_id_flags::USE_NON_PNFS, Ok(true)),
        (exchange_id_flags::USE_PNFS_DS, Ok(true)),
        (exchange_id_flags::SUPP_MOVED_REFER | exchange_id_flags::BIND_PRINC_STATEID, Ok(true)),
        (4, Err(Status::Inval)),
        (8, Err(Status::Inval)),
        (1 << 20, Err(Status::Inval)),
        (exchange_id_flags::CONFIRMED_R, Err(Status::Inval)),
    ] {
        let got = identified(g.c, exchange_id("flags", 1, flags)).await;
        let got = got.map(|(_, _, flags)| flags & roles != 0);
        g.record(&format!("EXCHANGE_ID with flags {flags:#x}"), expected, got);
    }
    let got = identified(g.c, exchange_id("unknown", 1, UPDATE)).await.map(drop);
    g.record("EXCHANGE_ID updates no record", Err::<(), _>(Status::NoEnt), got);
}

/// A record, confirmed by a session or not, and a second EXCHANGE_ID. The result is whether the client ID is the same.
async fn records(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let other = c.with(Credential::Sys(AuthSys { uid: 1111, gid: 37, ..AuthSys::default() }));
    for n in 0..16_u8 {
        let [confirmed, update, verifier, principal] = [1, 2, 4, 8].map(|bit| n & bit != 0);
        let expected = match (confirmed, update, verifier, principal) {
            (false, false, ..) => Ok(false),
            (false, true, ..) => Err(Status::NoEnt),
            (true, false, same, true) => Ok(same),
            (true, false, _, false) => Err(Status::ClidInuse),
            (true, true, true, true) => Ok(true),
            (true, true, false, true) => Err(Status::NotSame),
            (true, true, _, false) => Err(Status::Perm),
        };
        let owner = format!("record {n}");
        let (client, sequence, _) = identified(c, exchange_id(&owner, 1, 0)).await.unwrap();
        if confirmed {
            // A client without state could be replaced, so it gets a session.
            assert_eq!(send(c, 1, &[create_session(client, sequence, CHANNEL)]).await.status, Status::Ok);
        }
        let flags = if update { UPDATE } else { 0 };
        let again = exchange_id(&owner, if verifier { 1 } else { 2 }, flags);
        let got = identified(if principal { c } else { &other }, again).await;
        let got = got.map(|(id, ..)| id == client);
        let case = format!("EXCHANGE_ID: {confirmed} {update} {verifier} {principal}");
        g.record(&format!("{case} (confirmed, update, same verifier, same principal)"), expected, got);
    }
}

/// A confirmed client without state is replaced by another principal.
async fn without_state(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let other = c.with(Credential::Sys(AuthSys { uid: 1111, gid: 37, ..AuthSys::default() }));
    for verifier in [1, 2] {
        let owner = format!("stateless {verifier}");
        let (client, sequence, _) = identified(c, exchange_id(&owner, 1, 0)).await.unwrap();
        let created = send(c, 1, &[create_session(client, sequence, CHANNEL)]).await;
        let session = created.take::<CreateSessionOk>(Operation::CreateSession).session;
        let end = op(Operation::DestroySession, DestroySessionArgs { session });
        assert_eq!(send(c, 1, &[end]).await.status, Status::Ok);
        let got = identified(&other, exchange_id(&owner, verifier, 0)).await;
        let case = format!("another principal replaces a client without state, verifier {verifier}");
        g.record(&case, Ok::<_, Status>(false), got.map(|(id, ..)| id == client));
        let stale = create_session(client, sequence + 1, CHANNEL);
        g.check_alone("the replaced client creates a session", Status::StaleClientid, &[stale]).await;
    }
}

/// The session of a client that has restarted exists until the new incarnation is confirmed.
async fn restarts(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let (client, number, _) = identified(c, exchange_id("restarts", 1, 0)).await.unwrap();
    let created = send(c, 1, &[create_session(client, number, CHANNEL)]).await;
    let session = created.take::<CreateSessionOk>(Operation::CreateSession).session;
    let at = |number| {
        sequence(SequenceArgs { session, sequence: number, slot: 0, highest_slot: 0, cache_this: false })
    };
    let (new, number, _) = identified(c, exchange_id("restarts", 2, 0)).await.unwrap();
    g.check_alone("SEQUENCE before the new incarnation is confirmed", Status::Ok, &[at(1)]).await;
    g.check_alone("the new incarnation is confirmed", Status::Ok, &[create_session(new, number, CHANNEL)])
        .await;
    g.check_alone("SEQUENCE after the new incarnation is confirmed", Status::BadSession, &[at(2)]).await;
}

async fn arguments(g: &mut Group<'_, impl Call>) {
    let protection = |state_protect| {
        let owner = ClientOwner { verifier: [1; 8], id: Opaque(b"protected") };
        op(Operation::ExchangeId, ExchangeIdArgs { owner, flags: 0, state_protect, implementation: None })
    };
    let operations = ProtectedOperations { must_enforce: Bitmap::EMPTY, must_allow: Bitmap::EMPTY };
    let machine = protection(StateProtect::MachineCredential(operations));
    g.check_alone("SP4_MACH_CRED with AUTH_SYS", Status::Inval, &[machine]).await;
    g.check_alone("SP4_SSV", Status::EncrAlgUnsupp, &[protection(StateProtect::Ssv)]).await;
    let alone = [exchange_id("not alone", 1, 0), putrootfh()];
    g.check_alone("EXCHANGE_ID is not the only operation", Status::NotOnlyOp, &alone).await;
    g.check("EXCHANGE_ID after SEQUENCE", Status::Ok, [exchange_id("in a session", 1, 0)]).await;
    // Verifier, owner "x", flags 0, SP4_NONE, two empty nfs_impl_id4.
    let two = raw(&[42, 1, 1, 1, 0x7800_0000, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    g.check_alone("EXCHANGE_ID with two implementations", Status::BadXdr, &[two]).await;
    let long = raw(&[42, 1, 1, 1025]);
    g.check_alone("EXCHANGE_ID with an owner of 1025 bytes", Status::BadXdr, &[long]).await;
    let unknown = raw(&[42, 1, 1, 1, 0x7800_0000, 0, 3, 0]);
    g.check_alone("EXCHANGE_ID with an undefined protection", Status::BadXdr, &[unknown]).await;
}

async fn destruction(g: &mut Group<'_, impl Call>) {
    let c = g.c;
    let (client, ..) = identified(c, exchange_id("destroyed", 1, 0)).await.unwrap();
    g.check_alone("DESTROY_CLIENTID", Status::Ok, &[destroy(client)]).await;
    g.check_alone("DESTROY_CLIENTID twice", Status::StaleClientid, &[destroy(client)]).await;
    let unknown = ClientId { number: 0 };
    g.check_alone("DESTROY_CLIENTID of an unknown client", Status::StaleClientid, &[destroy(unknown)]).await;
    let more = [destroy(unknown), putrootfh()];
    g.check_alone("DESTROY_CLIENTID is not the only operation", Status::NotOnlyOp, &more).await;
    g.check("DESTROY_CLIENTID of an unknown client in a session", Status::StaleClientid, [destroy(unknown)])
        .await;
    let own = g.s.client;
    g.check("DESTROY_CLIENTID of the session's client", Status::ClientidBusy, [destroy(own)]).await;
    g.check_alone("DESTROY_CLIENTID of a client with a session", Status::ClientidBusy, &[destroy(own)]).await;
    let (client, ..) = identified(c, exchange_id("destroyed in a session", 1, 0)).await.unwrap();
    g.check("DESTROY_CLIENTID of another client in a session", Status::Ok, [destroy(client)]).await;
}
