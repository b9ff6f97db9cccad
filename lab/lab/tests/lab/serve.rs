//! Tests of the command `millrace-lab serve`, and of clients of its design.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use crate::common::{self, fails, ok};

const READ_READ: [&str; 4] = ["--export", "/m=memory:64MiB", "--design", "read-read"];

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn the_read_read_design_requires_acceptance_and_twice_for_networks() {
    let serve = |more: &[&str]| {
        let listen = ["--listen-tcp", "127.0.0.1:0", "--listen-rdma"];
        fails(2, &[&["serve"], &READ_READ[..], &listen, more].concat())
    };
    let said = serve(&["127.0.0.1:0"]);
    assert!(said.contains("add --i-accept-exposed-buffers"), "{said}");
    let said = serve(&["0.0.0.0:0", "--i-accept-exposed-buffers"]);
    assert!(said.contains("--i-accept-exposed-buffers twice"), "{said}");
}

#[test]
fn padding_is_refused_unless_every_selected_design_has_it() {
    let simulate = ["simulate", "--profile", "sdr-opensolaris", "--size", "64K", "--record", "1K"];
    for designs in [&[][..], &["--design", "read-write"], &["--design", "read-read,read-write"]] {
        let said = fails(2, &[&simulate[..], &["--padding", "512:1024"], designs].concat());
        assert!(said.contains("--padding (RDMA_MSGP) requires --design read-read"), "{said}");
    }
    ok(&[&simulate[..], &["--padding", "512:1024", "--design", "read-read"]].concat());
}

#[test]
fn data_is_transferred_by_the_read_read_design_if_both_ends_select_it() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace-lab"));
    command.arg("serve").args(READ_READ).args(["--i-accept-exposed-buffers", "--listen-tcp", "127.0.0.1:0"]);
    let command = command.args(["--listen-rdma", "127.0.0.1:0"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = Server(command.spawn().unwrap());
    let mut ready = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let addr = ready.split_whitespace().find_map(|w| w.strip_prefix("rdma=")).unwrap().to_owned();
    let url = format!("nfs://{addr}/m");
    let read = ["iozone", &url, "--size", "1M", "--tests", "write,read", "--json"];
    for more in [&[][..], &["--padding", "512:1024"]] {
        let out = ok(&[&read[..], &["--design", "read-read"], more].concat());
        assert_eq!(out.matches("\"design\":\"read-read\"").count(), 2, "{out}");
    }
    let said = String::from_utf8(common::run(&read).stderr).unwrap();
    assert!(said.contains("ERR_CHUNK"), "{said}");
}
