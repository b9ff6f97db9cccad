//! Tests of sessions of both roles: byte-exact exchanges, peers that violate the protocol (`hostile`,
//! `hostile_target`), random headers (`random`), and both roles connected to each other (`model`, `pairs`).

mod exchanges;
mod hostile;
mod hostile_target;
mod model;
mod pairs;
mod random;

use crate::{
    iser::Advertised,
    negotiation::{IserParameters, Parameters},
    pdu::{Bhs, Lengths, Request, Response},
};

use super::*;

/// Negotiated parameters with small bursts, so that exchanges are short.
const LIMITS: Parameters = Parameters {
    header_digest: false,
    data_digest: false,
    time2wait: 2,
    time2retain: 20,
    iser: None,
    initial_r2t: true,
    immediate_data: false,
    first_burst: 1024,
    max_burst: 2048,
    max_outstanding_r2t: 1,
    max_send_data: 1024,
    max_receive_data: 1024,
};

const UNSOLICITED: Parameters = Parameters { initial_r2t: false, immediate_data: true, ..LIMITS };

const ISER: Transport = Transport::Iser { remote_invalidate: false, max_unexpected: 0 };

/// How a pair of sessions transfers data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Tcp,
    Iser { remote_invalidate: bool, max_unexpected: u32 },
}

impl Transport {
    fn apply(self, limits: Parameters) -> Parameters {
        let iser = match self {
            Self::Tcp => None,
            Self::Iser { max_unexpected: max_unexpected_pdus, .. } => {
                Some(IserParameters { max_unexpected_pdus, hello_required: false, solicited_only: false })
            }
        };
        Parameters { iser, ..limits }
    }

    fn remote_invalidate(self) -> bool {
        matches!(self, Self::Iser { remote_invalidate: true, .. })
    }
}

fn target(limits: Parameters, transport: Transport) -> TargetSession {
    TargetSession::new(TargetConfig {
        parameters: transport.apply(limits),
        remote_invalidate: transport.remote_invalidate(),
        discovery: false,
        cid: 1,
        stat_sn: 0x20,
        exp_cmd_sn: 0x10,
        max_tasks: 8,
        max_unsolicited: 1 << 20,
    })
}

fn initiator(limits: Parameters, transport: Transport) -> InitiatorSession {
    InitiatorSession::new(InitiatorConfig {
        parameters: transport.apply(limits),
        cid: 1,
        cmd_sn: 0x10,
        max_cmd_sn: 0x17,
        exp_stat_sn: 0x20,
    })
}

fn command(direction: Direction, expected: u32) -> Command {
    let attribute = crate::pdu::TaskAttribute::SIMPLE;
    Command { lun: 0, attribute, cdb: [0x28; 16], direction, expected }
}

/// Passes a request with `data` zero bytes to a target.
fn request(t: &mut TargetSession, request: &Request, data: u32) -> Result<Placement, Violation> {
    advertise(t, request, data, Advertised::default())
}

fn advertise(
    t: &mut TargetSession,
    request: &Request,
    data: u32,
    advertised: Advertised,
) -> Result<Placement, Violation> {
    let bhs: Bhs = request.encode(data);
    let placement = t.begin(&bhs, &[], advertised)?;
    match placement {
        Placement::Control { length } => t.finish(&vec![0; length as usize])?,
        _ => t.finish(&[])?,
    }
    Ok(placement)
}

/// Passes a response to an initiator.
fn respond(i: &mut InitiatorSession, response: &Response, data: &[u8]) -> Result<Placement, Violation> {
    let bhs = response.encode(data.len() as u32);
    assert_eq!(Lengths::of(&bhs).data as usize, data.len());
    let placement = i.begin(&bhs, &[], None)?;
    let control = matches!(placement, Placement::Control { .. });
    i.finish(if control { data } else { &[] })?;
    Ok(placement)
}

fn transmits(t: &mut TargetSession) -> Vec<TargetTransmit> {
    std::iter::from_fn(|| t.poll_transmit()).collect()
}

fn events(t: &mut TargetSession) -> Vec<TargetEvent> {
    std::iter::from_fn(|| t.poll_event()).collect()
}
