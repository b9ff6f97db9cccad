//! RPC headers and credentials (RFC 5531).

use ::millrace_xdr::Decoder;
use millrace_oncrpc::{
    AcceptError, AuthStat, AuthSys, CallHeader, CallHeaderError, Credential, ReplyHeader, ReplyStatus,
    RpcMismatch, call_header, parse_reply,
};

use super::xdr::{encoded, flat, message, received};
use crate::heap::bounded;

/// A call's header.
pub(super) mod call {
    use super::*;

    /// Executes the target with `input`.
    pub(in crate::targets) fn run(input: &[u8]) {
        let mut decoder = Decoder::from_bytes(input);
        match bounded(input.len(), || CallHeader::decode(&mut decoder)) {
            Ok((header, credential)) => {
                let mut again =
                    message(|e| call_header(e, header.prog, header.vers, header.proc, &credential));
                assert!(again.set_xid(header.xid));
                let again = flat(&again);
                assert!(
                    again.len() <= decoder.position(),
                    "an encoded header is longer than the received one"
                );
                let mut decoder = Decoder::from_bytes(&again);
                let decoded = CallHeader::decode(&mut decoder).expect("an encoded header is decoded");
                assert_eq!(decoded, (header, credential.clone()));
                assert_eq!(decoder.remaining(), 0);
                let less = &again[..again.len() - 1];
                CallHeader::decode(&mut Decoder::from_bytes(less))
                    .expect_err("a truncated header is refused");
                if let Credential::Sys(sys) = &credential {
                    assert!(sys.machine.len() <= 255 && sys.gids.len() <= 16);
                }
            }
            Err(CallHeaderError::NotRpc | CallHeaderError::NotACall) => {}
            Err(CallHeaderError::RpcVersion { xid } | CallHeaderError::Auth { xid, .. }) => {
                assert_eq!(xid.to_be_bytes(), input[..4]);
            }
        }
    }

    /// Headers with credentials of each flavor.
    pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
        let sys = AuthSys {
            stamp: 7,
            machine: b"client".iter().copied().collect(),
            uid: 1000,
            gid: 100,
            gids: [4, 24, 27].into_iter().collect(),
        };
        let full =
            AuthSys { machine: [b'm'; 255].into_iter().collect(), gids: (0..16).collect(), ..sys.clone() };
        [Credential::None, Credential::Sys(sys), Credential::Sys(full), Credential::Other(6)]
            .iter()
            .map(|cred| encoded(|e| call_header(e, 100_003, 3, 1, cred)))
            .collect()
    }
}

/// A reply's header.
pub(super) mod reply {
    use super::*;

    /// Executes the target with `input`.
    pub(in crate::targets) fn run(input: &[u8]) {
        let mut decoder = Decoder::from_bytes(input);
        let decoded = bounded(input.len(), || decoder.get::<ReplyHeader>());
        let parsed = bounded(input.len(), || parse_reply(received(input), &"peer"));
        let Ok(header) = decoded else {
            assert!(parsed.is_err());
            return;
        };
        assert_eq!(parsed.is_ok(), header.status == ReplyStatus::Success);
        if let Ok(reply) = parsed {
            assert_eq!(reply.results().remaining(), decoder.remaining());
        }
        let again = encoded(|e| e.put(&header));
        let mut decoder = Decoder::from_bytes(&again);
        assert_eq!(decoder.get::<ReplyHeader>().expect("an encoded header is decoded"), header);
        assert_eq!(decoder.remaining(), 0);
        Decoder::from_bytes(&again[..again.len() - 1])
            .get::<ReplyHeader>()
            .expect_err("a truncated header is refused");
    }

    /// Headers with each status.
    pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
        let status = [
            ReplyStatus::Success,
            ReplyStatus::Accept(AcceptError::ProgUnavail),
            ReplyStatus::Accept(AcceptError::ProgMismatch { low: 2, high: 3 }),
            ReplyStatus::Accept(AcceptError::ProcUnavail),
            ReplyStatus::Accept(AcceptError::GarbageArgs),
            ReplyStatus::Accept(AcceptError::SystemErr),
            ReplyStatus::Auth(AuthStat::TooWeak),
            ReplyStatus::Mismatch(RpcMismatch { low: 2, high: 2 }),
        ];
        status.map(|status| encoded(|e| e.put(&ReplyHeader { xid: 0x1234_5678, status }))).into()
    }
}
