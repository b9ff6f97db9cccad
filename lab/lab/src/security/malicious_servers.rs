//! Malicious servers against a client, for `millrace-lab security`.

use millrace_hostile::{MaliciousServer, Violation, victim};
use millrace_program::{
    executor,
    failure::Failure,
    table::{Align, Table},
};
use millrace_rdma::registration::{Invalidation, Settings, Strategy};
use millrace_rdma_iwarp::Iwarp;
use millrace_runtime::tokio_rt::TokioRuntime;

use super::failed;

/// A violation, the client's registration strategy, and whether the provider is weakened so that the global
/// tag permits access to whole spans.
struct Case {
    violation: Violation,
    settings: Settings,
    weak: bool,
}

impl Case {
    /// All violations; the late write with each strategy; writes outside of exposed memory with the global
    /// tag.
    fn all() -> Vec<Self> {
        let of = |violation, strategy| Self {
            violation,
            settings: Settings { trust_peer: true, ..Settings::new(strategy) },
            weak: false,
        };
        let mut all: Vec<Self> = Violation::ALL.map(|violation| of(violation, Strategy::Fast)).into();
        all.extend(
            [Strategy::Dynamic, Strategy::Cache, Strategy::AllPhysical].map(|s| of(Violation::WritesLate, s)),
        );
        let batched = Settings { invalidation: Invalidation::Batched(16), ..Settings::new(Strategy::Fast) };
        all.push(Self { violation: Violation::WritesLate, settings: batched, weak: false });
        for weak in [false, true] {
            let outside = [Violation::WritesBeyond, Violation::WritesBefore];
            all.extend(outside.map(|violation| Self { weak, ..of(violation, Strategy::AllPhysical) }));
        }
        all
    }

    /// Whether the case demonstrates the risk of batched invalidation.
    fn open(&self) -> bool {
        self.settings.invalidation != Invalidation::AtOnce
    }

    fn registration(&self) -> String {
        match self.settings.invalidation {
            Invalidation::AtOnce if self.weak => format!("{}, as on an adapter", self.settings.strategy),
            Invalidation::AtOnce => self.settings.strategy.to_string(),
            batched @ Invalidation::Batched(_) => format!("{} {batched}", self.settings.strategy),
        }
    }
}

/// Text below the table.
const NOTE: &str = "Bytes. A late write succeeds only with batched invalidation, through a window that stays bound until \
     its batch is full.\nall-physical gives the server one tag for all buffer memory. The iWARP provider restricts it to \
     the memory of open calls nevertheless; an\nadapter would not, so all-physical requires --i-trust-the-server. \"As on \
     an adapter\" is a deliberately weakened provider: the server\nwrites to memory of other owners, and the call completes \
     without an error.\n";

/// Runs all violations against a client. Returns the text, and whether one did unexpected harm.
pub(super) fn run() -> Result<(String, bool), Failure> {
    let rt = executor::large()?;
    let columns = [
        ("a malicious server", Align::Left),
        ("registration", Align::Left),
        ("changed outside", Align::Right),
        ("changed late", Align::Right),
        ("result of the call", Align::Left),
    ];
    let mut table = Table::new(&columns);
    let mut harm = false;
    let (usual, weak) = (Iwarp::new(), Iwarp::insecure_with_whole_spans());
    for case in Case::all() {
        let provider = if case.weak { &weak } else { &usual };
        let server = MaliciousServer::start(case.violation).map_err(failed)?;
        let outcome = rt.block_on(async {
            victim::call(&server, case.violation, TokioRuntime::current(), case.settings.clone(), provider)
                .await
        });
        let outcome = outcome.map_err(failed)?;
        drop(server.end());
        if !case.weak {
            harm |= outcome.changed > 0 || (outcome.late() > 0 && !case.open());
            harm |= outcome.data().is_some() != (case.violation == Violation::WritesLate);
        }
        let cells = [outcome.changed.to_string(), outcome.late().to_string(), ending(&outcome)];
        table.row([case.violation.text().to_owned(), case.registration()].into_iter().chain(cells));
    }
    Ok((format!("{table}{NOTE}\n"), harm))
}

/// The result of a call to a malicious server, in a few words.
fn ending(outcome: &victim::Outcome) -> String {
    match (&outcome.result, outcome.data()) {
        (Ok(_), Some(_)) => "has its data".to_owned(),
        (Ok(_), None) => "its result does not decode".to_owned(),
        (Err(e), _) => {
            let text = e.to_string();
            let short = text.split_once(": ").map_or(text.as_str(), |(_, what)| what);
            short.split(" (").next().unwrap_or(short).to_owned()
        }
    }
}
