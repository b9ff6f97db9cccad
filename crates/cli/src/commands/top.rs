//! `millrace top`.

use std::{
    io::{IsTerminal, stdout},
    thread::sleep,
    time::Instant,
};

use millrace_program::{
    failure::{CommandResult, Failure, Outcome},
    output,
    samples::scrape,
    table::{Align, Table},
};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers},
};

use crate::{
    args::TopArgs,
    top::{Counters, GROUPS, History, Order, Rates, draw, title},
};

pub(super) fn run(args: &TopArgs) -> CommandResult {
    let first = scrape_counters(args)?;
    if args.once || args.json || !stdout().is_terminal() {
        sleep(args.interval());
        let rates = Rates::between(&first, &scrape_counters(args)?, args.sort);
        if args.json {
            output::line(&serde_json::to_string(&rates).unwrap_or_default())?;
            return Ok(Outcome::Done);
        }
        return output::write(text(&rates).as_bytes()).map(|()| Outcome::Done);
    }
    let mut terminal = ratatui::init();
    let outcome = watch(&mut terminal, args, first);
    ratatui::restore();
    outcome
}

fn scrape_counters(args: &TopArgs) -> Result<Counters, Failure> {
    let samples = scrape(&*args.address).map_err(|e| {
        Failure::new(format!(
            "cannot read counters from {}: {e}; start the server with --metrics ADDR:PORT, or `metrics` in its configuration, \
             and use that address",
            args.address
        ))
    })?;
    Ok(Counters::new(samples, Instant::now()))
}

/// Draws reports until the user quits.
fn watch(terminal: &mut DefaultTerminal, args: &TopArgs, mut before: Counters) -> CommandResult {
    let broken = |e: std::io::Error| Failure::new(format!("terminal error: {e}"));
    let (mut order, mut help) = (args.sort, false);
    let mut history = History::default();
    let mut now = before.clone();
    loop {
        let rates = Rates::between(&before, &now, order);
        terminal.draw(|f| draw(f, &args.address, order, &rates, &history, help)).map_err(broken)?;
        let next = Instant::now() + args.interval();
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if !event::poll(left).map_err(broken)? {
                (before, now) = (now, scrape_counters(args)?);
                history.add(&Rates::between(&before, &now, order));
                break;
            }
            match event::read().map_err(broken)? {
                Event::Key(key) if ends(key) => return Ok(Outcome::Done),
                Event::Key(key) => {
                    help = !help && matches!(key.code, KeyCode::Char('h' | '?'));
                    order = order_of(key).unwrap_or(order);
                }
                _ => {}
            }
            let rates = Rates::between(&before, &now, order);
            terminal.draw(|f| draw(f, &args.address, order, &rates, &history, help)).map_err(broken)?;
        }
    }
}

fn ends(key: KeyEvent) -> bool {
    let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

fn order_of(key: KeyEvent) -> Option<Order> {
    match key.code {
        KeyCode::Char('o') => Some(Order::Ops),
        KeyCode::Char('b') => Some(Order::Bytes),
        KeyCode::Char('9') => Some(Order::P99),
        KeyCode::Char('n') => Some(Order::Name),
        _ => None,
    }
}

/// The report as plain text.
fn text(rates: &Rates) -> String {
    let shown = GROUPS
        .iter()
        .zip(rates.groups())
        .filter(|(group, rows)| !rows.is_empty() || **group != "nfs4_client");
    let tables = shown.map(|(group, rows)| {
        let right = Align::Right;
        let mut t = Table::new(&[
            (title(group), Align::Left),
            ("ops/s", right),
            ("read MB/s", right),
            ("write MB/s", right),
            ("p50 us", right),
            ("p99 us", right),
        ]);
        for r in rows {
            let [ops, read, written, p50, p99] = r.texts();
            t.row([r.name.clone(), ops, read, written, p50, p99]);
        }
        t.to_string()
    });
    let iscsi = rates.iscsi.map(|iscsi| format!("{iscsi}\n"));
    rates.about().into_iter().chain(tables).chain(iscsi).collect::<Vec<_>>().join("\n")
}
