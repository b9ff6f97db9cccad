//! NFSv4.1 and 4.2 by raw COMPOUNDs.

mod administration;
mod callbacks;
mod caller;
mod conflicts;
mod conformance;
mod copy;
mod counters;
mod delegated_times;
mod delegations;
mod exclusive;
mod fairness;
mod files;
mod hostile;
mod kept_replies;
mod network;
mod paths;
mod read_plus;
mod reload;
mod restart;
mod retries;
mod sessions;
mod sparse;
mod unlinked;
mod xattr;

/// Requests and results.
use millrace_nfs4_conformance::compound;
