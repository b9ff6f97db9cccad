//! The table of operational keys (RFC 7143 section 13, RFC 7144 section 7, RFC 7145 section 6).

/// The keys, in the order in which they are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Id {
    RdmaExtensions,
    HeaderDigest,
    DataDigest,
    MaxConnections,
    InitialR2T,
    ImmediateData,
    MaxRecvDataSegmentLength,
    MaxBurstLength,
    FirstBurstLength,
    DefaultTime2Wait,
    DefaultTime2Retain,
    MaxOutstandingR2T,
    DataPduInOrder,
    DataSequenceInOrder,
    ErrorRecoveryLevel,
    IfMarker,
    OfMarker,
    IfMarkInt,
    OfMarkInt,
    TaskReporting,
    ProtocolLevel,
    InitiatorRecvDataSegmentLength,
    TargetRecvDataSegmentLength,
    MaxOutstandingUnexpectedPdus,
    MaxAhsLength,
    TaggedBufferForSolicitedDataOnly,
    IserHelloRequired,
}

/// How two sides determine the value of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    /// The smaller number; of booleans (0 and 1), AND.
    Min,
    /// The larger number; of booleans, OR.
    Max,
    /// The first item of the offered list that the other side supports.
    First,
    /// Each side declares its own value, and there is no answer.
    Declared,
    /// Always answered with `Irrelevant`.
    Irrelevant,
}

/// When a key is relevant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// In all sessions.
    Any,
    /// Not in discovery sessions.
    Normal,
    /// On connections with iSER.
    Iser,
}

/// A row of the table.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) id: Id,
    pub(super) name: &'static str,
    pub(super) function: Function,
    pub(super) scope: Scope,
    /// Whether the value is `Yes` or `No`.
    pub(super) boolean: bool,
    pub(super) default: u32,
    /// Range of a number.
    pub(super) min: u32,
    pub(super) max: u32,
    /// Whether 0, which is below the range, means "no limit".
    pub(super) zero: bool,
    /// Whether an initiator offers the key. It answers the others.
    pub(super) offered: bool,
}

impl Key {
    /// Whether `number` is in the range.
    pub(super) fn permits(&self, number: u32) -> bool {
        (self.min..=self.max).contains(&number) || self.zero && number == 0
    }
}

const fn key(id: Id, name: &'static str, function: Function, scope: Scope) -> Key {
    let (boolean, zero, offered) = (false, false, true);
    Key { id, name, function, scope, boolean, default: 0, min: 0, max: 0, zero, offered }
}

/// A boolean key with a default.
const fn flag(id: Id, name: &'static str, function: Function, scope: Scope, default: bool) -> Key {
    Key { boolean: true, default: default as u32, max: 1, ..key(id, name, function, scope) }
}

/// A number with a default and a range.
const fn number(
    id: Id,
    name: &'static str,
    function: Function,
    scope: Scope,
    default: u32,
    range: (u32, u32),
) -> Key {
    Key { default, min: range.0, max: range.1, ..key(id, name, function, scope) }
}

const fn answered(key: Key) -> Key {
    Key { offered: false, ..key }
}

use Function::{Declared, First, Irrelevant, Max, Min};
use Scope::{Any, Iser, Normal};

const LENGTH: (u32, u32) = (512, 0x00ff_ffff);
const COUNT: (u32, u32) = (1, 65535);
const SECONDS: (u32, u32) = (0, 3600);
const LIMIT: (u32, u32) = (2, u32::MAX);

/// The number of keys.
pub(super) const COUNT_OF_KEYS: usize = 27;

/// The keys; the index is the [`Id`].
pub(super) const KEYS: [Key; COUNT_OF_KEYS] = [
    flag(Id::RdmaExtensions, "RDMAExtensions", Min, Any, false),
    key(Id::HeaderDigest, "HeaderDigest", First, Any),
    key(Id::DataDigest, "DataDigest", First, Any),
    number(Id::MaxConnections, "MaxConnections", Min, Normal, 1, COUNT),
    flag(Id::InitialR2T, "InitialR2T", Max, Normal, true),
    flag(Id::ImmediateData, "ImmediateData", Min, Normal, true),
    number(Id::MaxRecvDataSegmentLength, "MaxRecvDataSegmentLength", Declared, Any, 8192, LENGTH),
    number(Id::MaxBurstLength, "MaxBurstLength", Min, Normal, 262_144, LENGTH),
    number(Id::FirstBurstLength, "FirstBurstLength", Min, Normal, 65536, LENGTH),
    number(Id::DefaultTime2Wait, "DefaultTime2Wait", Max, Any, 2, SECONDS),
    number(Id::DefaultTime2Retain, "DefaultTime2Retain", Min, Any, 20, SECONDS),
    number(Id::MaxOutstandingR2T, "MaxOutstandingR2T", Min, Normal, 1, COUNT),
    flag(Id::DataPduInOrder, "DataPDUInOrder", Max, Normal, true),
    flag(Id::DataSequenceInOrder, "DataSequenceInOrder", Max, Normal, true),
    number(Id::ErrorRecoveryLevel, "ErrorRecoveryLevel", Min, Any, 0, (0, 2)),
    // RFC 7143 section 13.25 has made markers obsolete.
    answered(flag(Id::IfMarker, "IFMarker", Min, Any, false)),
    answered(flag(Id::OfMarker, "OFMarker", Min, Any, false)),
    answered(key(Id::IfMarkInt, "IFMarkInt", Irrelevant, Any)),
    answered(key(Id::OfMarkInt, "OFMarkInt", Irrelevant, Any)),
    answered(key(Id::TaskReporting, "TaskReporting", First, Normal)),
    answered(number(Id::ProtocolLevel, "iSCSIProtocolLevel", Min, Normal, 1, (0, 31))),
    number(Id::InitiatorRecvDataSegmentLength, "InitiatorRecvDataSegmentLength", Min, Iser, 8192, LENGTH),
    number(Id::TargetRecvDataSegmentLength, "TargetRecvDataSegmentLength", Min, Iser, 8192, LENGTH),
    Key {
        zero: true,
        ..number(Id::MaxOutstandingUnexpectedPdus, "MaxOutstandingUnexpectedPDUs", Declared, Iser, 0, LIMIT)
    },
    Key { zero: true, ..answered(number(Id::MaxAhsLength, "MaxAHSLength", Declared, Iser, 256, LIMIT)) },
    answered(flag(
        Id::TaggedBufferForSolicitedDataOnly,
        "TaggedBufferForSolicitedDataOnly",
        Declared,
        Iser,
        false,
    )),
    answered(flag(Id::IserHelloRequired, "iSERHelloRequired", Declared, Iser, false)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_of_a_key_is_its_id() {
        for (i, key) in KEYS.iter().enumerate() {
            assert_eq!(key.id as usize, i, "{}", key.name);
            assert_eq!(KEYS.iter().filter(|k| k.name == key.name).count(), 1);
            assert!(key.default == 0 || key.permits(key.default), "{}", key.name);
        }
    }
}
