//! A slot of a session: at most one execution of each request (RFC 8881, 2.10.6).

use millrace_nfs::v4::Status;

/// The last request of a slot, and its reply.
enum Last<R> {
    /// The slot has not been used.
    None,
    /// The request is in progress.
    Executing,
    /// The request is executed, and its reply is not kept.
    Uncached,
    /// The request is executed, with this reply.
    Cached(R),
    /// The request is executed, and the slot was retired since: the client may begin with the number 1 again.
    Retired,
}

/// The last request of a slot that is retired.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retired {
    sequence: u32,
    digest: u64,
}

impl Retired {
    /// Whether a request is that one.
    pub(crate) fn is_last(self, sequence: u32, digest: u64) -> bool {
        self.sequence != 0 && sequence == self.sequence && digest == self.digest
    }
}

/// A slot of the fore channel.
pub(crate) struct Slot<R> {
    sequence: u32,
    /// Digest of the last request.
    digest: u64,
    last: Last<R>,
    /// [`Slots::requests`](crate::slots::Slots::requests) at the time of the last reply.
    pub(crate) told: u32,
}

/// The treatment of a request by its slot.
pub(crate) enum Admission<R> {
    /// A new request, which is now in progress.
    New,
    /// A retry of the last one, with the reply if it is kept.
    Retry(Option<R>),
}

impl<R: Clone> Slot<R> {
    pub(crate) fn new() -> Self {
        Self { sequence: 0, digest: 0, last: Last::None, told: 0 }
    }

    /// A slot that was retired.
    pub(crate) fn again(retired: Retired) -> Self {
        let last = if retired.sequence == 0 { Last::None } else { Last::Retired };
        Self { sequence: retired.sequence, digest: retired.digest, last, told: 0 }
    }

    pub(crate) fn retire(self) -> Retired {
        Retired { sequence: self.sequence, digest: self.digest }
    }

    /// Whether a request is the last one.
    pub(crate) fn is_last(&self, sequence: u32, digest: u64) -> bool {
        sequence == self.sequence && digest == self.digest
    }

    pub(crate) fn is_executing(&self) -> bool {
        matches!(self.last, Last::Executing)
    }

    /// Admits the request with `sequence`. A failure leaves the slot unchanged.
    pub(crate) fn admit(&mut self, sequence: u32, digest: u64) -> Result<Admission<R>, Status> {
        let is_next = sequence == self.sequence.wrapping_add(1) && !self.is_executing();
        let is_retry = self.is_last(sequence, digest);
        if is_next || (matches!(self.last, Last::Retired) && sequence == 1 && !is_retry) {
            *self = Self { sequence, digest, last: Last::Executing, told: self.told };
            return Ok(Admission::New);
        }
        if sequence != self.sequence {
            return Err(Status::SeqMisordered);
        }
        let reply = match &self.last {
            Last::None => return Err(Status::SeqMisordered),
            Last::Executing => return Err(Status::Delay),
            Last::Uncached | Last::Retired => None,
            Last::Cached(reply) => Some(reply),
        };
        if digest != self.digest {
            return Err(Status::SeqFalseRetry);
        }
        Ok(Admission::Retry(reply.cloned()))
    }

    /// Ends the request in progress.
    pub(crate) fn finish(&mut self, reply: Option<R>) {
        self.last = reply.map_or(Last::Uncached, Last::Cached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(slot: &mut Slot<u8>, sequence: u32, digest: u64) -> Result<Option<Option<u8>>, Status> {
        slot.admit(sequence, digest).map(|admission| match admission {
            Admission::New => None,
            Admission::Retry(reply) => Some(reply),
        })
    }

    #[test]
    fn a_slot_admits_the_next_request_and_retries_of_the_last() {
        let mut slot = Slot::new();
        assert_eq!(admitted(&mut slot, 0, 0), Err(Status::SeqMisordered), "there is no request to retry");
        assert_eq!(admitted(&mut slot, 2, 7), Err(Status::SeqMisordered));
        assert_eq!(admitted(&mut slot, 1, 7), Ok(None));
        assert_eq!(admitted(&mut slot, 1, 7), Err(Status::Delay));
        assert_eq!(admitted(&mut slot, 2, 7), Err(Status::SeqMisordered), "the last request is in progress");
        slot.finish(Some(9));
        assert_eq!(admitted(&mut slot, 1, 7), Ok(Some(Some(9))));
        assert_eq!(admitted(&mut slot, 1, 8), Err(Status::SeqFalseRetry));
        assert_eq!(admitted(&mut slot, 0, 7), Err(Status::SeqMisordered));
        assert_eq!(admitted(&mut slot, 3, 7), Err(Status::SeqMisordered));
        assert_eq!(admitted(&mut slot, 2, 8), Ok(None));
        slot.finish(None);
        assert_eq!(admitted(&mut slot, 2, 8), Ok(Some(None)));
        assert_eq!(admitted(&mut slot, 2, 7), Err(Status::SeqFalseRetry));
    }

    #[test]
    fn sequence_numbers_wrap_to_zero() {
        let mut slot = Slot { sequence: u32::MAX, digest: 1, last: Last::Cached(5), told: 0 };
        assert_eq!(admitted(&mut slot, u32::MAX, 1), Ok(Some(Some(5))));
        assert_eq!(admitted(&mut slot, 0, 2), Ok(None));
        slot.finish(Some(6));
        assert_eq!(admitted(&mut slot, 0, 2), Ok(Some(Some(6))));
        assert_eq!(admitted(&mut slot, u32::MAX, 1), Err(Status::SeqMisordered));
        assert_eq!(admitted(&mut slot, 1, 3), Ok(None));
    }

    #[test]
    fn a_retired_slot_continues_or_begins_again() {
        let again = |sequence| Slot::again(Retired { sequence, digest: 7 });
        for (last, sequence, digest, expected) in [
            (5, 6, 8, Ok(None)),
            (5, 1, 8, Ok(None)),
            (5, 5, 7, Ok(Some(None))),
            (5, 5, 8, Err(Status::SeqFalseRetry)),
            (5, 2, 8, Err(Status::SeqMisordered)),
            (1, 1, 8, Ok(None)),
            (1, 1, 7, Ok(Some(None))),
            (0, 1, 7, Ok(None)),
            (0, 0, 7, Err(Status::SeqMisordered)),
        ] {
            assert_eq!(admitted(&mut again(last), sequence, digest), expected, "{sequence} after {last}");
        }
        let mut slot = again(5);
        assert_eq!(admitted(&mut slot, 6, 8), Ok(None));
        slot.finish(Some(9));
        assert_eq!(admitted(&mut slot, 1, 9), Err(Status::SeqMisordered), "the slot is in use");
    }
}
