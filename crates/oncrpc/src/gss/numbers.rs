//! The sequence numbers of a client's calls (RFC 2203 section 5.3.3.1).

use std::collections::VecDeque;

use super::wire::MAX_SEQUENCE;

/// The largest window that is used, if the server announces a larger one: it bounds the calls that are kept.
const MAX_WINDOW: u32 = 4096;

/// The sequence numbers of the calls of a context. A server discards a call without a reply if it has received one whose
/// number is larger by its window or more. So the number of a call exceeds that of the oldest one which the server may not
/// have received by less than the window: then the calls can arrive in any order, on any connections.
#[derive(Debug)]
pub(super) struct Numbers {
    /// What the server announced, within 1 and [`MAX_WINDOW`].
    window: u32,
    /// The number of the next call.
    next: u32,
    /// Number of calls that are to be sent and have no number yet.
    admitted: u32,
    /// The calls in flight, by number; the server may not have received the first one.
    sent: VecDeque<Sent>,
}

#[derive(Debug)]
struct Sent {
    number: u32,
    connection: usize,
    /// Whether the server has received the call, or it does not matter any more.
    received: bool,
}

impl Numbers {
    pub(super) fn new(window: u32) -> Self {
        Self { window: window.clamp(1, MAX_WINDOW), next: 1, admitted: 0, sent: VecDeque::new() }
    }

    /// Number of numbers that are left for calls.
    pub(super) fn left(&self) -> u32 {
        (MAX_SEQUENCE + 1 - self.next).saturating_sub(self.admitted)
    }

    /// Whether another call may be sent.
    pub(super) fn has_room(&self) -> bool {
        let oldest = self.sent.front().map_or(self.next, |sent| sent.number);
        self.next - oldest + self.admitted < self.window
    }

    /// Admits a call that is to be sent.
    pub(super) fn admit(&mut self) {
        self.admitted += 1;
    }

    /// Takes back the admission of a call that is not sent.
    pub(super) fn forget(&mut self) {
        self.admitted -= 1;
    }

    /// The number of an admitted call that is sent on `connection`, on which calls arrive in the order in which they are sent.
    /// `None`: there are no more.
    pub(super) fn take(&mut self, connection: usize) -> Option<u32> {
        self.forget();
        let number = Some(self.next).filter(|number| *number <= MAX_SEQUENCE)?;
        self.next += 1;
        self.sent.push_back(Sent { number, connection, received: false });
        Some(number)
    }

    /// The server has answered a call, and so received those before it on the connection.
    pub(super) fn answered(&mut self, number: u32) {
        let Ok(at) = self.sent.binary_search_by_key(&number, |sent| sent.number) else { return };
        let connection = self.sent[at].connection;
        let before = self.sent.range_mut(..=at).filter(|sent| sent.connection == connection);
        before.for_each(|sent| sent.received = true);
        self.remove_received();
    }

    /// A call has ended.
    pub(super) fn ended(&mut self, number: u32) {
        if let Ok(at) = self.sent.binary_search_by_key(&number, |sent| sent.number) {
            self.sent[at].received = true;
            self.remove_received();
        }
    }

    fn remove_received(&mut self) {
        while self.sent.pop_front_if(|sent| sent.received).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sent(numbers: &mut Numbers, connection: usize) -> Option<u32> {
        numbers.has_room().then(|| {
            numbers.admit();
            numbers.take(connection).unwrap()
        })
    }

    #[test]
    fn a_slow_call_is_waited_for_until_the_server_has_received_it() {
        let mut numbers = Numbers::new(4);
        assert_eq!([(); 5].map(|()| sent(&mut numbers, 1)), [Some(1), Some(2), Some(3), Some(4), None]);
        // Number 1 has not arrived on another connection, for all that is known.
        let mut other = Numbers::new(4);
        assert_eq!((sent(&mut other, 1), sent(&mut other, 2)), (Some(1), Some(2)));
        other.answered(2);
        assert_eq!([(); 3].map(|()| sent(&mut other, 2)), [Some(3), Some(4), None]);
        other.ended(1);
        assert_eq!([(); 3].map(|()| sent(&mut other, 2)), [Some(5), Some(6), None]);
        // On the same connection it has arrived before number 2.
        numbers.answered(2);
        assert_eq!([(); 3].map(|()| sent(&mut numbers, 1)), [Some(5), Some(6), None]);
    }

    #[test]
    fn a_server_cannot_have_any_number_of_calls_kept() {
        let mut numbers = Numbers::new(u32::MAX);
        sent(&mut numbers, 1).unwrap();
        let others = std::iter::from_fn(|| sent(&mut numbers, 2).inspect(|n| numbers.answered(*n)));
        assert_eq!(others.take(10_000).count(), 4095);
        assert_eq!(numbers.sent.len(), 4096);
    }

    #[test]
    fn numbers_end_before_the_largest_is_exceeded() {
        let mut numbers = Numbers { next: MAX_SEQUENCE, ..Numbers::new(9) };
        numbers.admit();
        numbers.admit();
        assert_eq!(numbers.left(), 0);
        assert_eq!((numbers.take(1), numbers.take(1)), (Some(MAX_SEQUENCE), None));
        assert_eq!((numbers.left(), numbers.admitted), (0, 0));
    }

    proptest! {
        /// Calls that arrive in any order on several connections, at a server with the smallest window.
        #[test]
        fn no_call_arrives_below_the_window(
            window in 1..9u32,
            steps in prop::collection::vec((0..4u8, 0..3usize), 1..300),
        ) {
            let mut numbers = Numbers::new(window);
            let (mut unsent, mut last) = (0, 0);
            // The calls in flight to the server, and those that it has received and not answered.
            let (mut queues, mut received) = ([(); 3].map(|()| VecDeque::new()), Vec::new());
            for (step, connection) in steps {
                match step {
                    0 if numbers.has_room() => {
                        numbers.admit();
                        unsent += 1;
                    }
                    1 if unsent > 0 => {
                        unsent -= 1;
                        queues[connection].push_back(numbers.take(connection).unwrap());
                    }
                    2 => {
                        if let Some(number) = queues[connection].pop_front() {
                            prop_assert!(number + window > last, "{} after {}", number, last);
                            last = last.max(number);
                            received.push(number);
                        }
                    }
                    3 if !received.is_empty() => {
                        let number = received.swap_remove(connection % received.len());
                        numbers.answered(number);
                        numbers.ended(number);
                    }
                    _ => {}
                }
            }
        }
    }
}
