//! Text exchanges in the full feature phase (RFC 7143 sections 11.10 and 11.11).

use crate::pdu::{Bhs, RESERVED_TAG, TextRequest};

use super::super::Violation;

/// Maximum length of the text of one exchange that the initiator sends, in bytes.
const MAX_TEXT: usize = 16 << 10;

/// A text exchange; a session has at most one.
#[derive(Debug)]
pub(super) struct Exchange {
    itt: u32,
    lun: u64,
    /// The tag that the next request of the exchange has.
    ttt: u32,
    received: Vec<u8>,
    /// The rest of the answer, from its first response to its last one.
    answer: Option<Rest>,
    /// The initiator has nothing more to negotiate.
    last: bool,
    /// The text is complete, and has no answer.
    awaiting: bool,
    /// The header of the first request.
    header: Box<Bhs>,
}

/// The part of an answer that has not been sent.
#[derive(Debug)]
struct Rest {
    text: Vec<u8>,
    /// The owner has more text.
    more: bool,
}

/// The result of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// This response is sent.
    Respond(Piece),
    /// The text is complete: it needs an answer.
    Complete(Vec<u8>),
    /// The answer needs more text of the owner.
    Continue,
}

/// A Text Response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) itt: u32,
    pub(super) lun: u64,
    pub(super) ttt: u32,
    pub(super) last: bool,
    pub(super) continued: bool,
    pub(super) text: Vec<u8>,
}

impl Exchange {
    /// The exchange that a first request begins with; it ends any other exchange (RFC 7143 section 11.10.4). `ttt` is
    /// its tag, `header` the header of the request.
    pub(super) fn new(pdu: &TextRequest, ttt: u32, header: Bhs) -> Self {
        Self {
            itt: pdu.itt,
            lun: pdu.lun,
            ttt,
            received: Vec::new(),
            answer: None,
            last: false,
            awaiting: false,
            header: Box::new(header),
        }
    }

    /// The header of the request that a Reject contains.
    pub(super) fn into_header(self) -> Box<Bhs> {
        self.header
    }

    /// Whether the exchange waits for the answer to the request with `itt`.
    pub(super) const fn awaits_answer(&self, itt: u32) -> bool {
        self.awaiting && self.itt == itt
    }

    /// Whether the exchange is complete when `piece` is sent.
    pub(super) const fn ends_with(piece: &Piece) -> bool {
        piece.ttt == RESERVED_TAG
    }

    /// Processes a request with `text`. Responses have at most `max` bytes of text.
    ///
    /// # Errors
    ///
    /// The request is not the next one of the exchange, or the text is too long.
    pub(super) fn request(&mut self, pdu: &TextRequest, text: &[u8], max: usize) -> Result<Step, Violation> {
        if pdu.ttt != RESERVED_TAG && (pdu.ttt != self.ttt || pdu.itt != self.itt || self.awaiting) {
            return Err(Violation::TransferTag(pdu.ttt));
        }
        if let Some(answer) = self.answer.take() {
            // The initiator requests the rest of the answer with empty requests.
            if !text.is_empty() {
                return Err(Violation::Unexpected("Text Request with text before the end of the answer"));
            }
            if answer.text.is_empty() {
                self.awaiting = true;
                return Ok(Step::Continue);
            }
            return Ok(Step::Respond(self.piece(answer, max)));
        }
        if self.received.len() + text.len() > MAX_TEXT {
            return Err(Violation::TextLength(MAX_TEXT));
        }
        self.received.extend_from_slice(text);
        if pdu.continued {
            return Ok(Step::Respond(self.response(Vec::new(), false, false)));
        }
        self.last = pdu.last;
        self.awaiting = true;
        Ok(Step::Complete(std::mem::take(&mut self.received)))
    }

    /// Bytes of text that the exchange holds.
    pub(super) fn held(&self) -> usize {
        self.received.len() + self.answer.as_ref().map_or(0, |rest| rest.text.len())
    }

    /// The first response with `text` of the answer; `more`: the owner has more of it.
    pub(super) fn answer(&mut self, text: Vec<u8>, more: bool, max: usize) -> Piece {
        self.awaiting = false;
        self.piece(Rest { text, more }, max)
    }

    fn piece(&mut self, answer: Rest, max: usize) -> Piece {
        let Rest { mut text, more } = answer;
        let rest = text.split_off(text.len().min(max));
        if rest.is_empty() && !more {
            return self.response(text, self.last, false);
        }
        self.answer = Some(Rest { text: rest, more });
        self.response(text, false, true)
    }

    const fn response(&self, text: Vec<u8>, last: bool, continued: bool) -> Piece {
        let ttt = if last { RESERVED_TAG } else { self.ttt };
        Piece { itt: self.itt, lun: self.lun, ttt, last, continued, text }
    }
}
