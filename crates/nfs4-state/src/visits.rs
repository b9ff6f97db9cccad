//! The number of entries that operations visit, by which tests bound their time.

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
