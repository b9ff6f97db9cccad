//! Negotiation of operational parameters (RFC 7143 section 6.2), the same for both roles.
//!
//! The login of each role (`login`) owns a `Negotiation`: it offers the keys of `Settings`, answers those of
//! the peer, and `finish` returns the `Parameters` of the session.

mod keys;
mod settings;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::settings as settings_strategy;

use keys::{COUNT_OF_KEYS, Function, Id, KEYS, Key, Scope};
pub use settings::{DigestPolicy, IserParameters, IserSettings, Parameters, Settings};

use crate::text;

const NOT_UNDERSTOOD: &str = "NotUnderstood";
const IRRELEVANT: &str = "Irrelevant";
const REJECT: &str = "Reject";

/// Why a negotiation fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// An answer is invalid.
    #[error("the peer answered the key {0} with an invalid value")]
    Answer(&'static str),
    /// The peer refuses a key.
    #[error("the peer rejected the value of the key {0}")]
    Rejected(&'static str),
    /// The peer has not answered a key.
    #[error("the peer did not answer the key {0}")]
    Unanswered(&'static str),
    /// A key is negotiated again.
    #[error("the peer negotiated the key {0} twice")]
    Repeated(&'static str),
    /// The answer to a key that was not offered.
    #[error("the peer answered the key {0}, which was not offered")]
    Unsolicited(String),
    /// The value of a key is unacceptable to this side.
    #[error("the peer's value of the key {0} is not acceptable to this side's settings")]
    Unacceptable(&'static str),
}

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// This side has offered it.
    Offered,
    /// It has its value; of declared keys, that of the peer.
    Settled,
}

/// The negotiation of one connection.
#[derive(Debug)]
pub(crate) struct Negotiation {
    initiator: bool,
    discovery: bool,
    settings: Settings,
    states: [State; COUNT_OF_KEYS],
    values: [u32; COUNT_OF_KEYS],
}

impl Negotiation {
    pub(crate) fn new(initiator: bool, discovery: bool, settings: Settings) -> Self {
        let values = std::array::from_fn(|i| KEYS[i].default);
        Self { initiator, discovery, settings, states: [State::Open; COUNT_OF_KEYS], values }
    }

    /// Appends this side's first keys to `out`: all of an initiator, the declarations of a target.
    pub(crate) fn open(&mut self, out: &mut Vec<u8>) {
        for key in KEYS.iter().filter(|k| k.offered) {
            let declared = key.function == Function::Declared && !self.declared_in_reply(key);
            if self.initiator && self.used(key) || declared {
                self.offer(key, out);
            }
        }
    }

    /// Whether this side declares `key` only after the peer: open-iscsi does not support MaxOutstandingUnexpectedPDUs,
    /// and ends a login whose answer has it.
    fn declared_in_reply(&self, key: &Key) -> bool {
        !self.initiator && key.id == Id::MaxOutstandingUnexpectedPdus
    }

    /// Appends the keys that the initiator has not offered and whose defaults are not acceptable to this
    /// target. Returns whether there are any.
    pub(crate) fn offer_missing(&mut self, out: &mut Vec<u8>) -> bool {
        let before = out.len();
        for key in &KEYS {
            if self.states[key.id as usize] == State::Open && self.used(key) && !self.acceptable(key) {
                self.offer(key, out);
            }
        }
        out.len() > before
    }

    /// Takes a key of the peer: an answer, or an offer whose answer is appended to `out`.
    pub(crate) fn receive(
        &mut self,
        name: &str,
        value: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), NegotiationError> {
        let refusal = matches!(value, NOT_UNDERSTOOD | IRRELEVANT | REJECT);
        let Some(key) = KEYS.iter().find(|k| k.name == name) else {
            if refusal {
                return Err(NegotiationError::Unsolicited(name.to_owned()));
            }
            text::push(out, name, NOT_UNDERSTOOD);
            return Ok(());
        };
        if key.function == Function::Declared {
            return self.declared(key, value, refusal, out);
        }
        match self.states[key.id as usize] {
            State::Settled => Err(NegotiationError::Repeated(key.name)),
            State::Offered => self.answered(key, value),
            State::Open if refusal => Err(NegotiationError::Unsolicited(name.to_owned())),
            State::Open => {
                let answer = self.answer(key, value);
                text::push(out, key.name, &answer);
                Ok(())
            }
        }
    }

    /// Returns the negotiated parameters.
    pub(crate) fn finish(&self) -> Result<Parameters, NegotiationError> {
        for key in KEYS.iter().filter(|k| k.function != Function::Declared) {
            let optional = answer_is_optional(key, self.settings.wish(key, self.initiator));
            if self.states[key.id as usize] == State::Offered && !optional {
                return Err(NegotiationError::Unanswered(key.name));
            }
            if self.used(key) && !self.acceptable(key) {
                return Err(NegotiationError::Unacceptable(key.name));
            }
        }
        let iser = self.is(Id::RdmaExtensions);
        if self.settings.iser.is_some() && !self.discovery && !iser {
            return Err(NegotiationError::Unacceptable("RDMAExtensions"));
        }
        Ok(self.parameters(iser))
    }

    fn parameters(&self, iser: bool) -> Parameters {
        let seconds = |id| u16::try_from(self.value(id)).unwrap_or(u16::MAX);
        let (receive, send) = match (iser, self.initiator) {
            (true, true) => (Id::InitiatorRecvDataSegmentLength, Id::TargetRecvDataSegmentLength),
            (true, false) => (Id::TargetRecvDataSegmentLength, Id::InitiatorRecvDataSegmentLength),
            (false, _) => (Id::MaxRecvDataSegmentLength, Id::MaxRecvDataSegmentLength),
        };
        let own = self.settings.wish(&KEYS[receive as usize], self.initiator);
        Parameters {
            header_digest: self.is(Id::HeaderDigest),
            data_digest: self.is(Id::DataDigest),
            max_send_data: self.value(send),
            max_receive_data: if iser { self.value(receive) } else { own },
            initial_r2t: self.is(Id::InitialR2T),
            immediate_data: self.is(Id::ImmediateData),
            max_burst: self.value(Id::MaxBurstLength),
            first_burst: self.value(Id::FirstBurstLength).min(self.value(Id::MaxBurstLength)),
            max_outstanding_r2t: u16::try_from(self.value(Id::MaxOutstandingR2T)).unwrap_or(u16::MAX),
            time2wait: seconds(Id::DefaultTime2Wait),
            time2retain: seconds(Id::DefaultTime2Retain),
            iser: iser.then(|| IserParameters {
                max_unexpected_pdus: self.value(Id::MaxOutstandingUnexpectedPdus),
                hello_required: self.is(Id::IserHelloRequired),
                solicited_only: self.is(Id::TaggedBufferForSolicitedDataOnly),
            }),
        }
    }

    fn value(&self, id: Id) -> u32 {
        self.values[id as usize]
    }

    fn is(&self, id: Id) -> bool {
        self.value(id) != 0
    }

    fn relevant(&self, key: &Key) -> bool {
        match key.scope {
            Scope::Any => true,
            Scope::Normal => !self.discovery,
            Scope::Iser => self.settings.iser.is_some(),
        }
    }

    /// Whether this side offers `key`. A discovery session on an RDMA connection does not need iSER's keys.
    fn used(&self, key: &Key) -> bool {
        let iser = self.settings.iser.is_some() && !self.discovery;
        match key.id {
            Id::RdmaExtensions => iser,
            Id::MaxRecvDataSegmentLength => !iser,
            _ if key.scope == Scope::Iser => iser,
            _ => self.relevant(key),
        }
    }

    /// Whether the present value of `key` respects this side's settings.
    fn acceptable(&self, key: &Key) -> bool {
        let value = self.value(key.id);
        let wish = self.settings.wish(key, self.initiator);
        match key.function {
            Function::Min => key.id == Id::RdmaExtensions || value <= wish,
            Function::Max => value >= wish,
            // The defaults of lists are their first values, of which only digests have a choice.
            Function::First => value != 0 || self.settings.supported(key) != ["CRC32C"],
            Function::Declared | Function::Irrelevant => true,
        }
    }

    fn offer(&mut self, key: &Key, out: &mut Vec<u8>) {
        let wish = self.settings.wish(key, self.initiator);
        if key.function == Function::Declared {
            if self.used(key) && wish != key.default {
                text::push(out, key.name, &wish.to_string());
            }
            return;
        }
        self.states[key.id as usize] = State::Offered;
        if answer_is_optional(key, wish) {
            self.values[key.id as usize] = wish;
        }
        match key.function {
            Function::First => text::push(out, key.name, &self.settings.supported(key).join(",")),
            _ => text::push(out, key.name, &show(key, wish)),
        }
    }

    fn declared(
        &mut self,
        key: &Key,
        value: &str,
        refusal: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), NegotiationError> {
        if refusal || !self.relevant(key) {
            return Ok(());
        }
        if self.states[key.id as usize] == State::Settled {
            return Err(NegotiationError::Repeated(key.name));
        }
        self.states[key.id as usize] = State::Settled;
        self.values[key.id as usize] = parse(key, value).ok_or(NegotiationError::Answer(key.name))?;
        if self.declared_in_reply(key) {
            self.offer(key, out);
        }
        Ok(())
    }

    /// Settles a key that this side has offered. The function is applied to the answer, too, so that a peer
    /// that does not apply it cannot exceed what this side has offered.
    fn answered(&mut self, key: &Key, value: &str) -> Result<(), NegotiationError> {
        self.states[key.id as usize] = State::Settled;
        match (key.function, value) {
            (_, REJECT) => return Err(NegotiationError::Rejected(key.name)),
            (_, NOT_UNDERSTOOD | IRRELEVANT) => self.values[key.id as usize] = key.default,
            (Function::First, value) => {
                if !self.settings.supported(key).contains(&value) {
                    return Err(match DigestPolicy::Accept.supported().contains(&value) {
                        true => NegotiationError::Unacceptable(key.name),
                        false => NegotiationError::Answer(key.name),
                    });
                }
                self.values[key.id as usize] = u32::from(value == "CRC32C");
            }
            (_, value) => {
                let answer = parse(key, value).ok_or(NegotiationError::Answer(key.name))?;
                self.values[key.id as usize] = self.combine(key, answer);
            }
        }
        Ok(())
    }

    /// Settles a key that the peer has offered, and returns the answer.
    fn answer(&mut self, key: &Key, value: &str) -> String {
        self.states[key.id as usize] = State::Settled;
        if !self.relevant(key) || key.function == Function::Irrelevant {
            return IRRELEVANT.to_owned();
        }
        if key.function == Function::First {
            let supported = self.settings.supported(key);
            let Some(item) = text::list(value).find(|item| supported.contains(item)) else {
                return REJECT.to_owned();
            };
            self.values[key.id as usize] = u32::from(item == "CRC32C");
            return item.to_owned();
        }
        let Some(offer) = parse(key, value) else { return REJECT.to_owned() };
        let result = self.combine(key, offer);
        self.values[key.id as usize] = result;
        show(key, result)
    }

    fn combine(&self, key: &Key, other: u32) -> u32 {
        let wish = self.settings.wish(key, self.initiator);
        match key.function {
            Function::Max => wish.max(other),
            _ => wish.min(other),
        }
    }
}

/// Whether the peer may leave the offer of `wish` without an answer, because any answer has the same result (RFC 7143
/// section 6.2.2); Linux's target does.
fn answer_is_optional(key: &Key, wish: u32) -> bool {
    match key.function {
        Function::Min => key.boolean && wish == 0,
        Function::Max => key.boolean && wish != 0,
        Function::First | Function::Declared | Function::Irrelevant => false,
    }
}

/// The value of a boolean or a number, if it is in the range.
fn parse(key: &Key, value: &str) -> Option<u32> {
    let number = if key.boolean { text::boolean(value).map(u32::from) } else { text::number(value) };
    number.filter(|n| key.permits(*n))
}

fn show(key: &Key, value: u32) -> String {
    if key.boolean { text::yes_no(value != 0).to_owned() } else { value.to_string() }
}

/// Whether `name` is an operational key.
pub(crate) fn is_operational(name: &str) -> bool {
    KEYS.iter().any(|key| key.name == name)
}
