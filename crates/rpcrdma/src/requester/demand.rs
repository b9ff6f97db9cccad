//! Number of credits that a requester requests.

/// Minimum request, within the limit, so that the first calls of a program need not wait for credits.
const MIN_REQUEST: u32 = 8;
/// Length of a period in calls. A burst determines the request until the end of the following period.
const PERIOD: u32 = 256;

/// The credit demand of one connection: the maximum number of concurrent calls in the current and the
/// previous period. The responder posts a receive for each credit that it grants, so a connection requests
/// only the credits that it needs (RFC 8166 section 3.3.1).
///
/// Periods are counted in calls, because credits are requested and granted with calls only.
pub struct CreditDemand {
    /// Maximum request.
    limit: u32,
    /// Maximum number of concurrent calls in this period and in the previous one.
    now: u32,
    before: u32,
    /// Calls until the period ends.
    left: u32,
}

impl CreditDemand {
    /// Creates a demand with a maximum of `limit` credits, at least 1.
    pub fn new(limit: u32) -> Self {
        Self { limit, now: 0, before: 0, left: PERIOD }
    }

    /// Maximum request.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Credits to request with a call that is sent while `open` calls, including itself, are in flight or
    /// wait for credits. At least the number of calls in flight, up to [`Self::limit`].
    pub fn request(&mut self, open: usize) -> u32 {
        if self.left == 0 {
            (self.before, self.now, self.left) = (self.now, 0, PERIOD);
        }
        self.left -= 1;
        self.now = self.now.max(u32::try_from(open).unwrap_or(u32::MAX));
        self.now.max(self.before).max(MIN_REQUEST).min(self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_requested_with_its_first_call_and_expires_unless_repeated() {
        let mut d = CreditDemand::new(64);
        assert_eq!(d.request(1), 8);
        assert_eq!(d.request(50), 50);
        let kept = (0..).take_while(|_| d.request(1) == 50).count();
        assert!((PERIOD as usize..2 * PERIOD as usize).contains(&kept), "{kept}");
        assert_eq!(d.request(1), 8);
        // A repeated burst keeps the request.
        for n in 0..10 * PERIOD {
            let asked = d.request(if n % PERIOD == 0 { 20 } else { 1 });
            assert_eq!(asked, 20, "{n}");
        }
    }

    #[test]
    fn requests_do_not_exceed_the_limit() {
        assert_eq!(CreditDemand::new(3).request(1), 3);
        assert_eq!(CreditDemand::new(1).request(70), 1);
        assert_eq!(CreditDemand::new(64).request(usize::MAX), 64);
    }
}
