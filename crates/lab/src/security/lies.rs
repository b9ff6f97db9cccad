//! Servers that lie to a client, for `millrace-lab security`.

use millrace_bench::table::{Align, Table};
use millrace_cli_common::{executor, failure::Failure};
use millrace_hostile::{Liar, Lie, victim};
use millrace_rdma_iwarp::Iwarp;
use millrace_rpcrdma::registration::{Invalidation, Settings, Strategy};
use millrace_runtime::tokio_rt::TokioRuntime;

use super::failed;

/// A lie, the registration strategy that meets it, and whether the provider lets the global tag reach whole spans.
struct Told {
    lie: Lie,
    settings: Settings,
    weak: bool,
}

impl Told {
    /// Every lie; the one that writes late, with each strategy; those that write astray, where memory has one tag.
    fn all() -> Vec<Self> {
        let of = |lie, strategy| Self {
            lie,
            settings: Settings { trust_peer: true, ..Settings::new(strategy) },
            weak: false,
        };
        let mut all: Vec<Self> = Lie::ALL.map(|lie| of(lie, Strategy::Fast)).into();
        all.extend(
            [Strategy::Dynamic, Strategy::Cache, Strategy::AllPhysical].map(|s| of(Lie::WritesLate, s)),
        );
        let batched = Settings { invalidation: Invalidation::Batched(16), ..Settings::new(Strategy::Fast) };
        all.push(Self { lie: Lie::WritesLate, settings: batched, weak: false });
        for weak in [false, true] {
            let astray = [Lie::WritesBeyond, Lie::WritesBefore];
            all.extend(astray.map(|lie| Self { weak, ..of(lie, Strategy::AllPhysical) }));
        }
        all
    }

    /// Whether it is there to show what batched invalidation leaves open.
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

/// What is below the table of lies.
const LIES: &str = "Bytes. A late write can land with batched invalidation alone: the window that it leaves open until \
     its batch is full.\nall-physical gives the server one tag for all memory for buffers. The iWARP provider holds it to \
     the memory of open calls all the same; an\nadapter would not, so it is refused without --i-trust-the-server. \"As on \
     an adapter\" is a provider made weak on purpose: the server\nwrites to memory of other owners, and the call ends as if \
     nothing had happened.\n";

/// Tells all of them to a client; the text, and whether one did harm that it must not.
pub(super) fn told() -> Result<(String, bool), Failure> {
    let rt = executor::large()?;
    let columns = [
        ("a lying server", Align::Left),
        ("registration", Align::Left),
        ("changed beyond", Align::Right),
        ("changed late", Align::Right),
        ("the call", Align::Left),
    ];
    let mut table = Table::new(&columns);
    let mut harm = false;
    let (usual, weak) = (Iwarp::new(), Iwarp::insecure_with_whole_spans());
    for told in Told::all() {
        let provider = if told.weak { &weak } else { &usual };
        let liar = Liar::start(told.lie).map_err(failed)?;
        let outcome = rt.block_on(async {
            victim::call(&liar, told.lie, TokioRuntime::current(), told.settings.clone(), provider).await
        });
        let outcome = outcome.map_err(failed)?;
        drop(liar.end());
        if !told.weak {
            harm |= outcome.changed > 0 || (outcome.late() > 0 && !told.open());
            harm |= outcome.data().is_some() != (told.lie == Lie::WritesLate);
        }
        let cells = [outcome.changed.to_string(), outcome.late().to_string(), ending(&outcome)];
        table.row([told.lie.text().to_owned(), told.registration()].into_iter().chain(cells));
    }
    Ok((format!("{table}{LIES}\n"), harm))
}

/// How a call to a liar has ended, in a few words.
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
