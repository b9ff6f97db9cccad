//! How many credits a requester asks for.

/// What is asked for at least, within the limit: so that a program which begins to make some calls at once need not
/// wait for credits first.
const LEAST: u32 = 8;
/// A demand that does not come again is asked for during so many calls, and at most twice as many.
const KEPT: u32 = 256;

/// The demand of one connection: as many credits are asked for as there were calls at once not long ago. The responder
/// has a receive for each that it grants, busy or not, so a connection asks for no more (RFC 8166 section 3.3.1 lets a
/// requester say what it needs).
///
/// It is counted in calls, not in time: credits come and go with calls only.
pub(super) struct Demand {
    /// The most that is asked for.
    most: u32,
    /// The most calls at once in this period of [`KEPT`] calls, and in the one before.
    now: u32,
    before: u32,
    /// Calls until the period ends.
    left: u32,
}

impl Demand {
    /// `most` is at least 1.
    pub(super) fn new(most: u32) -> Self {
        Self { most, now: 0, before: 0, left: KEPT }
    }

    /// The most that is asked for.
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    /// The credits to ask for with a call that is sent while so many are open: in flight, itself among them, or waiting
    /// for credits. Never fewer than are in flight, as long as these are no more than [`Self::most`].
    pub(super) fn ask(&mut self, open: usize) -> u32 {
        if self.left == 0 {
            (self.before, self.now, self.left) = (self.now, 0, KEPT);
        }
        self.left -= 1;
        self.now = self.now.max(u32::try_from(open).unwrap_or(u32::MAX));
        self.now.max(self.before).max(LEAST).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_asked_for_with_its_first_call_and_forgotten_when_it_does_not_come_again() {
        let mut d = Demand::new(64);
        assert_eq!(d.ask(1), 8);
        assert_eq!(d.ask(50), 50);
        let kept = (0..).take_while(|_| d.ask(1) == 50).count();
        assert!((KEPT as usize..2 * KEPT as usize).contains(&kept), "{kept}");
        assert_eq!(d.ask(1), 8);
        // One that comes again and again is kept.
        for n in 0..10 * KEPT {
            let asked = d.ask(if n % KEPT == 0 { 20 } else { 1 });
            assert_eq!(asked, 20, "{n}");
        }
    }

    #[test]
    fn no_more_is_asked_for_than_the_limit() {
        assert_eq!(Demand::new(3).ask(1), 3);
        assert_eq!(Demand::new(1).ask(70), 1);
        assert_eq!(Demand::new(64).ask(usize::MAX), 64);
    }
}
