//! Tests of `State`. The modules `*_model` execute random steps and compare results with a reference model;
//! the others test single operations.

mod bounds;
mod bounds_model;
mod clients;
mod delegation_model;
mod delegations;
mod fairness;
mod grace;
mod locks;
mod open_model;
mod opens;
mod restart_model;
mod revocation;
mod sessions;
mod slot_model;

use std::{net::IpAddr, net::Ipv4Addr, sync::Arc, time::Duration};

use millrace_nfs::v4::{Bitmap, ClientId, Operation, SequenceOk, Stateid, Status};

use crate::*;

const EPOCH: u32 = 7;
const S: fn(u64) -> Duration = Duration::from_secs;

fn limits() -> Limits {
    Limits {
        clients: 16,
        unconfirmed: 4,
        unconfirmed_per_address: 3,
        sessions_per_client: 2,
        ..Limits::default()
    }
}

fn state() -> State<u64> {
    with_limits(limits())
}

fn with_limits(limits: Limits) -> State<u64> {
    State::new(limits, Identity { epoch: EPOCH, secret: [3; 16] })
}

fn address(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

fn identify(owner: &str, verifier: u8) -> ExchangeId<'_> {
    let address = address(1);
    ExchangeId {
        owner: owner.as_bytes(),
        verifier: [verifier; 8],
        update: false,
        principal: b"root",
        is_protected: false,
        machine: None,
        address,
    }
}

/// The attributes that the Linux client requests.
const FORE: ChannelAttributes = ChannelAttributes {
    header_pad: 0,
    request_bytes: 1_049_620,
    response_bytes: 1_049_480,
    cached_bytes: 3428,
    operations: 8,
    slots: 64,
};
const BACK: ChannelAttributes = ChannelAttributes {
    header_pad: 0,
    request_bytes: 4096,
    response_bytes: 4096,
    cached_bytes: 0,
    operations: 2,
    slots: 16,
};

fn create(client: ClientId, sequence: u32) -> CreateSession<'static> {
    CreateSession { client, sequence, back_channel: true, fore: FORE, back: BACK, principal: b"root" }
}

/// A client with one session.
fn client(state: &State<u64>, owner: &str, now: Duration) -> Arc<Session<u64>> {
    client_of(state, 1, owner, now).unwrap()
}

/// A client of an address with one session.
fn client_of(state: &State<u64>, host: u8, owner: &str, now: Duration) -> Result<Arc<Session<u64>>, Status> {
    let args = ExchangeId { address: address(host), ..identify(owner, 1) };
    let id = state.exchange_id(&args, now)?;
    let created = state.create_session(&create(id.client, id.sequence), now)?;
    state.session(created.session).ok_or(Status::BadSession)
}

fn request(slot: u32, sequence: u32) -> SequenceRequest {
    SequenceRequest { sequence, slot, highest_slot: slot }
}

/// Executes a request in slot 0 to its end.
fn renew(session: &Arc<Session<u64>>, sequence: u32, now: Duration) -> Result<(), Status> {
    match session.sequence(&request(0, sequence), 0, now)? {
        Sequence::Execute(execution, _) => execution.finish(None),
        other => panic!("{other:?}"),
    }
    Ok(())
}

/// A client that has sent RECLAIM_COMPLETE.
fn ready(state: &State<u64>, owner: &str, now: Duration) -> Arc<Session<u64>> {
    let session = client(state, owner, now);
    state.reclaim_complete(session.client()).unwrap();
    session
}

/// Checks the stateid of a READ or WRITE.
fn check_access(
    state: &State<u64>,
    client: &Client,
    id: &Stateid,
    file: &[u8],
    write: bool,
    now: Duration,
) -> Result<(), Status> {
    let result = state.check_access(client, id, file, write, now).map(drop);
    assert!(
        result.is_ok() || !state.permits_access_to_all(id, write),
        "{result:?}, but permitted to all files"
    );
    result
}
