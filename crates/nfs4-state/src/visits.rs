//! The number of entries that operations visit, by which tests bound their time.

/// Number of entries that a step of an operation visits, which takes some hundred microseconds. Other requests run before
/// the next step.
pub(crate) const STEP: usize = 1024;

#[cfg(test)]
thread_local! {
    /// Number of entries that operations of this thread have visited.
    static VISITED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts visited entries, for tests.
pub(crate) fn count_visits(_visits: usize) {
    #[cfg(test)]
    VISITED.with(|visited| visited.set(visited.get() + _visits));
}

/// Number of entries that `work` visits.
#[cfg(test)]
pub(crate) fn visits_of<T>(work: impl FnOnce() -> T) -> (usize, T) {
    VISITED.with(|visited| visited.set(0));
    let result = work();
    (VISITED.with(std::cell::Cell::get), result)
}
