//! The window of sequence numbers of a context (RFC 2203 section 5.3.3.1).

/// The window that the server announces: a client does not use a number while a call with a number that much smaller is
/// unanswered.
pub(crate) const ANNOUNCED: u32 = 512;
/// The numbers that are kept. The calls of a context come over several connections, so that more than the announced ones can
/// be out of order.
const KEPT: u32 = 2 * ANNOUNCED;

/// The sequence numbers that the calls of a context have used, in order of arrival.
#[derive(Debug)]
pub(crate) struct Window {
    /// The largest one.
    last: u32,
    /// Whether each of the last [`KEPT`] was used, at its remainder.
    used: [u64; KEPT as usize / 64],
}

impl Default for Window {
    fn default() -> Self {
        Self { last: 0, used: [0; KEPT as usize / 64] }
    }
}

/// The word of a number, and its bit in it.
fn place(sequence: u32) -> (usize, u64) {
    let at = sequence % KEPT;
    (at as usize / 64, 1 << (at % 64))
}

impl Window {
    /// Uses a number. Returns whether it is new: above the window, or in it and not used before. The header of the call was
    /// verified: otherwise a stranger could move the window.
    #[must_use = "a call with another number is discarded"]
    pub(crate) fn accept(&mut self, sequence: u32) -> bool {
        if sequence > self.last {
            if sequence - self.last >= KEPT {
                self.used.fill(0);
            } else {
                for skipped in self.last + 1..sequence {
                    let (word, bit) = place(skipped);
                    self.used[word] &= !bit;
                }
            }
            self.last = sequence;
            let (word, bit) = place(sequence);
            self.used[word] |= bit;
            return true;
        }
        let (word, bit) = place(sequence);
        if self.last - sequence >= KEPT || self.used[word] & bit != 0 {
            return false;
        }
        self.used[word] |= bit;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_used_once_and_not_below_the_window() {
        let mut window = Window::default();
        for (sequence, new) in [
            (0, true), // The first number may be any.
            (0, false),
            (1, true),
            (1, false),
            (KEPT, true),
            (0, false),
            (2, true),
            (1, false),
            (KEPT + 1, true),
            (1, false),
            (KEPT - 1, true),
            (5 * KEPT, true),
            (4 * KEPT + 1, true),
            (4 * KEPT, false),
            (0x8000_0000, true),
            (5 * KEPT, false),
            (0x7fff_ffff, true),
            (0x8000_0000 - KEPT, false),
        ] {
            assert_eq!(window.accept(sequence), new, "{sequence}");
        }
    }

    proptest! {
        #[test]
        fn each_number_is_new_as_a_set_of_all_used_ones_says(
            steps in prop::collection::vec((0..4u32, 0..3000u32), 1..300),
        ) {
            let (mut window, mut used, mut last) = (Window::default(), HashSet::new(), 0u32);
            for (kind, distance) in steps {
                let sequence = match kind {
                    0 => last + distance,
                    1 => last + distance % 5,
                    _ => last.saturating_sub(distance % 1500),
                };
                let new = (sequence > last || last - sequence < KEPT) && used.insert(sequence);
                prop_assert_eq!(window.accept(sequence), new, "{} after {}", sequence, last);
                last = last.max(sequence);
            }
        }
    }
}
