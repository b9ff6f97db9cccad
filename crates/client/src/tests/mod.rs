//! Tests of the client against a scripted server (`script`): a closure that answers calls, and connections
//! that the test drops.

mod copies;
mod exclusive;
mod faults;
mod invalid_replies;
mod mounting;
mod negotiation;
mod nfs4;
mod retries;
mod script;
mod streams;
mod unstable;
mod xattrs;

use crate::handles::{Client, File};

/// The client's futures must be `Send` for multi-threaded executors.
#[allow(dead_code)]
fn futures_are_send(client: &Client, file: &File) {
    fn send<T: Send>(_: T) {}
    let h = client.root();
    send(client.resolve("x"));
    send(client.readdir(h));
    send(client.rename(h, "a", h, "b"));
    send(client.read(h, 0, &mut []));
    send(file.read_stream(0, 1, 2, |_, _| ()));
    send(file.write_stream(0, 2, |_| Ok(None)));
    send(file.commit());
}
