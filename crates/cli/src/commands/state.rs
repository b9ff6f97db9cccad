//! `millrace state`.

use std::path::Path;

use millrace_program::{
    failure::{CommandResult, Failure, Outcome},
    output,
    table::{Align, Table},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    args::{RevokeArgs, StateArgs, StateCommand},
    control::{Request, ask},
    describe::printable,
    state::{ClientState, Filter, OpenState, StateRequest},
};

pub(super) fn run(args: &StateArgs) -> CommandResult {
    match (&args.command, args.filter.filter()) {
        (Some(StateCommand::Revoke(args)), _) => revoke(args),
        (None, None) => {
            let next = |last: Option<&ClientState>| StateRequest::Clients { after: last.map(|c| c.client) };
            show(args, &clients_header(), next, client_row)?;
            awaited(args)
        }
        (None, Some(filter)) => {
            let next = |last: Option<&OpenState>| {
                let after = last.map(|open| (open.client, open.number));
                StateRequest::Opens { filter: filter.clone(), after }
            };
            show(args, &opens_header(), next, open_row)
        }
    }
}

/// Prints the clients that the grace period waits for, which may have no session and are therefore not in the list.
fn awaited(args: &StateArgs) -> CommandResult {
    let names: Vec<String> = request(&args.socket, StateRequest::Awaited)?;
    awaited_line(&names, args.json).iter().try_for_each(|line| output::line(line))?;
    Ok(Outcome::Done)
}

fn awaited_line(names: &[String], json: bool) -> Option<String> {
    if names.is_empty() {
        return None;
    }
    if json {
        return Some(serde_json::json!({ "awaited": names }).to_string());
    }
    let names: Vec<_> = names.iter().map(|name| printable(name.as_bytes())).collect();
    Some(format!("the grace period waits for {}", names.join(", ")))
}

fn revoke(args: &RevokeArgs) -> CommandResult {
    let filter = args
        .filter
        .filter()
        .ok_or_else(|| Failure::usage("state what to revoke: --client ID, --export NAME or --file PATH"))?;
    let revoked: usize = request(&args.socket, StateRequest::Revoke { filter: filter.clone() })?;
    let of = match &filter {
        Filter::Client(id) => format!("client {id}"),
        Filter::Export(name) => name.clone(),
        Filter::File(path) => path.display().to_string(),
    };
    output::line(&format!("{revoked} opens and lock owners of {of} are revoked"))?;
    Ok(Outcome::Done)
}

fn request<T: DeserializeOwned>(socket: &Path, request: StateRequest) -> Result<T, Failure> {
    let text = ask(socket, &Request::State(request))?.map_err(Failure::new)?;
    serde_json::from_str(&text).map_err(|e| {
        Failure::new(format!(
            "the server's answer is not understood: {e}; use the program of the server's version"
        ))
    })
}

/// Prints the entries page by page. `next` makes the request for the page after an entry.
fn show<T: Serialize + DeserializeOwned>(
    args: &StateArgs,
    header: &[(&str, Align)],
    next: impl Fn(Option<&T>) -> StateRequest,
    row: fn(&T) -> Vec<String>,
) -> CommandResult {
    let (mut table, mut lines, mut last) = (Table::new(header), 0, None);
    'pages: loop {
        let page: Vec<T> = request(&args.socket, next(last.as_ref()))?;
        if page.is_empty() {
            break;
        }
        for entry in page {
            if lines == args.limit {
                eprintln!("millrace: there are more; use a filter, or raise --limit");
                break 'pages;
            }
            lines += 1;
            match args.json {
                true => output::line(&serde_json::to_string(&entry).unwrap_or_default())?,
                false => table.row(row(&entry)),
            }
            last = Some(entry);
        }
    }
    if !args.json {
        output::write(table.to_string().as_bytes())?;
    }
    Ok(Outcome::Done)
}

fn clients_header() -> [(&'static str, Align); 9] {
    let (left, right) = (Align::Left, Align::Right);
    [
        ("client", left),
        ("address", left),
        ("xprtsec", left),
        ("lease age", right),
        ("sessions", right),
        ("opens", right),
        ("locks", right),
        ("revoked", right),
        ("owner", left),
    ]
}

fn client_row(client: &ClientState) -> Vec<String> {
    let expired = if client.lease_expired { " (expired)" } else { "" };
    vec![
        client.client.to_string(),
        client.address.clone(),
        protection(client),
        format!("{} s{expired}", client.lease_age_seconds),
        client.sessions.to_string(),
        client.opens.to_string(),
        client.locks.to_string(),
        client.revoked.to_string(),
        printable(client.owner.as_bytes()),
    ]
}

/// The protection of the client's connection, with the subject of its certificate.
fn protection(client: &ClientState) -> String {
    let security = client.xprtsec.as_deref().unwrap_or("-");
    match &client.subject {
        Some(subject) => format!("{security} ({})", printable(subject.as_bytes())),
        None => security.to_owned(),
    }
}

fn opens_header() -> [(&'static str, Align); 7] {
    let (left, right) = (Align::Left, Align::Right);
    [
        ("client", left),
        ("export", left),
        ("inode", right),
        ("kind", left),
        ("access", left),
        ("deny", left),
        ("locks", right),
    ]
}

fn open_row(open: &OpenState) -> Vec<String> {
    let dash = || "-".to_owned();
    let revoked = if open.revoked { " (revoked)" } else { "" };
    vec![
        open.client.to_string(),
        open.export.clone().unwrap_or_else(dash),
        open.inode.map_or_else(dash, |inode| inode.to_string()),
        format!("{}{revoked}", open.kind),
        open.access.clone().unwrap_or_else(dash),
        open.deny.clone().unwrap_or_else(dash),
        open.ranges.map_or_else(dash, |ranges| ranges.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_that_the_grace_period_waits_for_are_named() {
        let names = [String::from("Linux NFSv4.2 a"), String::from("b\n\"")];
        assert_eq!(awaited_line(&[], true), None);
        assert_eq!(awaited_line(&names, true).unwrap(), r#"{"awaited":["Linux NFSv4.2 a","b\n\""]}"#);
        let text = awaited_line(&names, false).unwrap();
        assert!(text.starts_with("the grace period waits for Linux NFSv4.2 a, b") && !text.contains('\n'));
    }
}
