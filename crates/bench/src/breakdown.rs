//! Latency breakdown of an operation, at both ends.

use millrace_oncrpc::stages::StageSums;

/// The stages of the sampled calls of one measurement.
#[derive(Debug, Clone, Default)]
pub struct Breakdown {
    /// Sampled calls at the client.
    pub client: StageSums,
    /// Sampled calls at the server; `None` if the server was not started for the measurement.
    pub server: Option<StageSums>,
    /// Mean latency of all operations for the caller, sampled or not, in microseconds.
    pub mean_us: f64,
}

impl Breakdown {
    /// Sums the stages of all `runs` of the same measurement; `None` without runs.
    pub(crate) fn of_all<'a>(runs: impl Iterator<Item = &'a Self> + Clone) -> Option<Self> {
        let n = runs.clone().count();
        let add = |a: Option<StageSums>, b: &StageSums| Some(a.map_or(*b, |a| a.plus(b)));
        (n > 0).then(|| Self {
            client: runs.clone().fold(None, |sum, b| add(sum, &b.client)).unwrap_or_default(),
            server: runs.clone().filter_map(|b| b.server.as_ref()).fold(None, add),
            mean_us: runs.map(|b| b.mean_us).sum::<f64>() / n as f64,
        })
    }

    /// The available ends, in the order of a call, with their names.
    pub fn ends(&self) -> impl Iterator<Item = (&'static str, &StageSums)> {
        [("client", Some(&self.client)), ("server", self.server.as_ref())]
            .into_iter()
            .filter_map(|(end, sums)| Some((end, sums?)))
    }
}
