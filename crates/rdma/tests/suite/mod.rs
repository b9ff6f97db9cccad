//! Conformance tests for providers.
//!
//! The tests of each provider crate include this folder as a module, with `#[path =
//! "../../../rdma/tests/suite/mod.rs"] mod suite;`. The including file defines `on_a_device`, which runs a
//! test on a [`common::Lab`] of its provider, or skips it on a host without a device.

pub(crate) mod common;
mod endings;
mod exposure;
mod setup;
mod transfer;

use std::{future::poll_fn, net::SocketAddr, task::Poll, time::Duration};

use millrace_buffer::{Arena, ArenaConfig, Buffer, Views};
use millrace_rdma::{Completion, ConnectParams, ConnectionError, SendRequest, WorkId};

use super::on_a_device;
use common::*;
