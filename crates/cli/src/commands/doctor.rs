//! `millrace doctor`.

use millrace_program::{
    executor,
    failure::{CommandResult, Outcome},
    output,
};
use serde_json::json;

use crate::{
    args::DoctorArgs,
    doctor::{Finding, State, machine, server, target},
    session,
};

pub(super) fn run(args: &DoctorArgs) -> CommandResult {
    let mut findings = machine();
    match args.url.as_deref() {
        Some(url) if url.starts_with("iscsi:") || url.starts_with("iser:") => {
            let url = super::blk::parse(url)?;
            findings.extend(executor::small()?.block_on(target(&url)));
        }
        Some(url) => {
            let url = session::parse(url)?;
            findings.extend(executor::small()?.block_on(server(&url)));
        }
        None => {}
    }
    let text = if args.json { to_json(&findings) } else { to_text(&findings) };
    output::write(text.as_bytes())?;
    let broken = findings.iter().any(|f| f.state == State::Broken);
    Ok(if broken { Outcome::Failed } else { Outcome::Done })
}

fn to_text(findings: &[Finding]) -> String {
    findings.iter().fold(String::new(), |mut text, f| {
        text += &format!("{:<7} {:<14} {}\n", f.state.name(), f.check, f.found);
        if let Some(remedy) = &f.remedy {
            text += &format!("{:<22} -> {remedy}\n", "");
        }
        text
    })
}

fn to_json(findings: &[Finding]) -> String {
    let list: Vec<_> = findings
        .iter()
        .map(|f| json!({ "state": f.state.name(), "check": f.check, "found": f.found, "remedy": f.remedy }))
        .collect();
    format!("{}\n", json!({ "findings": list }))
}
